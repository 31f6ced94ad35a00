"""The embedded default: Java, jars, PostgreSQL and Airflow for one machine, kept in one folder and stopped to the last process.

Everything here can be left out: on a cluster the catalog, the ledger's URL and the Spark connection are configuration.
"""
