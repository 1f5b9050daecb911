"""Rows written in the format that a file's ending names."""

from __future__ import annotations

import csv
import gzip
import json

from hf_recipes.data.reading.readers import ending


def write_rows(path, rows):
    """Write rows in the format that the file's ending names."""
    import pyarrow

    kind = ending(path)
    if kind.endswith((".gz", ".zst")):
        data = write_rows(path.with_suffix(""), rows).read_bytes()
        packed = gzip.compress(data) if kind.endswith(".gz") else pyarrow.compress(data, "zstd", asbytes=True)
        path.write_bytes(packed)
    elif kind == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind in (".arrow", ".feather"):
        table = pyarrow.Table.from_pylist(rows)
        new = pyarrow.ipc.new_stream if kind == ".arrow" else pyarrow.ipc.new_file
        with pyarrow.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    elif kind in (".csv", ".tsv"):
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif kind == ".json":
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
