"""The run folder: the only room that knows its file names."""

from cupola.core.runlog.folder import Layout, only_writer, write_json, write_text
from cupola.core.runlog.read import RunReader, read_jsonl, read_parquet
from cupola.core.runlog.write import RunWriter, append, write_evaluation, write_parquet

__all__ = [
    "Layout",
    "RunReader",
    "RunWriter",
    "append",
    "only_writer",
    "read_jsonl",
    "read_parquet",
    "write_evaluation",
    "write_json",
    "write_parquet",
    "write_text",
]
