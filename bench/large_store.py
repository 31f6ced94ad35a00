"""Run the store and the catalog for the large topic's cluster until the signal to end: `python -m bench.large_store FOLDER`.

Store and catalog are like the embedded cluster's, but versitygw keeps the objects as files."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.gateway import gateway, program
from lifecycle_local import cluster
from lifecycle_local.lake_server import serve
from lifecycle_local.layout import find_layout
from lifecycle_local.processes import last_port


def main(folder: Path) -> int:
    layout, executable = find_layout(), program()
    assert executable is not None, "who starts this has found it"
    with gateway(executable, folder, cluster.root_key(layout), port=last_port(layout.ports_file, cluster.STORE) or 0) as store:
        for bucket in (cluster.BUCKET, cluster.LANDING):
            store.files.create_dir(bucket)
        return serve(layout, store)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
