"""Topics as Apache Iceberg tables (format v3), through Spark for writing and PyIceberg for reading without a JVM."""
