"""Data files, their columns, and what is made of them."""

from __future__ import annotations

from hf_recipes.doctor.log.signature import Signature

_DATASETS = "datasets 5.2, provoked"

SIGNATURES: dict[str, Signature] = {
    "columns_differ": Signature(
        needle="because column names don't match",
        cause="Two data files, or parts of one, have different columns.",
        cure="one data set a file (datasets: one entry each, with its own format), or the same columns everywhere",
        example="because column names don't match",
        seen=_DATASETS,
    ),
    "cast_error": Signature(
        needle="CastError",
        pattern=r"(DatasetGeneration)?CastError\b",
        cause="A column changes its type or its fields between rows or files (text here, a list or a number there).",
        cure="hf-recipes inspect names file and row; make the field one type, or drop it",
        kind="symptom",
        example="datasets.exceptions.DatasetGenerationCastError: An error occurred while generating the dataset",
        seen=_DATASETS,
    ),
    "json_types": Signature(
        needle="JSON parse error: Column(",
        pattern=r"JSON parse error: Column\((?P<name>[^)]*)\) changed from (?P<first>\w+) to (?P<second>\w+)",
        cause="The field <name> is <first> in one row and <second> in another.",
        cure="make it one type in all rows; hf-recipes reads such files and names the rows",
        example="pyarrow.lib.ArrowInvalid: JSON parse error: Column(/a) changed from object to array in row 1",
        seen="pyarrow, provoked",
    ),
    "json_broken": Signature(
        needle="JSON parse error:",
        pattern=r"JSON parse error: (?!Column\()(?P<what>.+?)(\. in row (?P<row>\d+))?$",
        cause="A line of the data file is no JSON (<what>).",
        cure="one JSON object a line; hf-recipes inspect names file and line",
        example="pyarrow.lib.ArrowInvalid: JSON parse error: Missing a comma or '}' after an object member. in row 0",
        seen="pyarrow, provoked",
    ),
    "json_decode": Signature(
        needle="JSONDecodeError",
        pattern=r"JSONDecodeError: (?P<what>.+)$",
        cause="A JSON file (data, a config, a tokenizer) is broken or empty: <what>.",
        cure="the traceback names the file; a download that broke off: remove it from the cache and load again",
        example="json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        seen="Python 3.11, provoked",
    ),
    "generation_error": Signature(
        needle="DatasetGenerationError",
        cause="A data set could not be read; why stands above it.",
        cure="look at the error above it",
        kind="summary",
        example="datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
        seen=_DATASETS,
    ),
    "no_data_files": Signature(
        needle=("EmptyDatasetError", "DataFilesNotFoundError"),
        pattern=r"(EmptyDatasetError: .*doesn't contain any data files|DataFilesNotFoundError: No \(supported\) "
        r"data files)",
        cause="The directory or repository holds no file of a known kind.",
        cure="give the file itself (datasets: [{path: …jsonl}]; load_dataset(…, data_files=…)), or look at the path",
        example="datasets.data_files.EmptyDatasetError: The directory at data/ doesn't contain any data files",
        seen=_DATASETS,
    ),
    "dataset_script": Signature(
        needle="Dataset scripts are no longer supported",
        cause="The data set is made by a script, which datasets 4 and later do not run.",
        cure="take its Parquet branch (revision: refs/convert/parquet), or the files themselves",
        example="RuntimeError: Dataset scripts are no longer supported, but found mine.py",
        seen=_DATASETS,
    ),
    "dataset_absent": Signature(
        needle="on the Hub or cannot be accessed",
        pattern=r"Dataset '(?P<name>[^']+)' doesn't exist on the Hub or cannot be accessed",
        cause="There is no data set '<name>' on the Hub, or this token may not see it.",
        cure="look at the name; ask for access and log in (hf auth login); a local path needs a file's name",
        example="datasets.exceptions.DatasetNotFoundError: Dataset 'nobody/nothing' doesn't exist on the Hub or "
        "cannot be "
        "accessed.",
        seen="datasets 5.2 (datasets/load.py)",
    ),
    "not_utf8": Signature(
        needle="UnicodeDecodeError",
        pattern=r"codec can't decode byte (?P<byte>0x[0-9a-f]+)",
        cause="A text file is not in UTF-8 (byte <byte>), or the locale makes Python read it otherwise.",
        cure="iconv -f WINDOWS-1252 -t UTF-8; PYTHONUTF8=1; hf-recipes reads UTF-16 and BOMs by itself",
        example="UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 3: invalid continuation byte",
        seen="Python 3.11, provoked",
    ),
    "not_picklable": Signature(
        needle="cannot pickle '",
        pattern=r"cannot pickle '(?P<name>[\w. ]+)' object",
        cause="A function for several processes holds something that cannot be sent to them (<name>).",
        cure="make it inside the function; or dataset_num_proc: 1, dataloader_num_workers: 0",
        example="TypeError: cannot pickle '_thread.lock' object",
        seen="Python 3.11, provoked",
    ),
    "map_died": Signature(
        needle="One of the subprocesses has abruptly died during map operation",
        cause="A process of datasets.map was killed, most often for memory.",
        cure="fewer dataset_num_proc; a smaller writer_batch_size; one process shows the error itself",
        kind="symptom",
        example="RuntimeError: One of the subprocesses has abruptly died during map operation. To debug the "
        "error, disable "
        "multiprocessing.",
        seen="datasets 5.2 (datasets/utils/py_utils.py)",
    ),
    "no_rows": Signature(
        needle="num_samples should be a positive integer value, but got num_samples=0",
        cause="The training set is empty: every row was dropped, or the split holds none.",
        cure="hf-recipes inspect counts what was read and dropped, and why",
        example="ValueError: num_samples should be a positive integer value, but got num_samples=0",
        seen="torch 2.13, provoked",
    ),
    "no_columns": Signature(
        needle="No columns in the dataset match the model's forward method signature",
        cause="The Trainer got text columns: the data were not tokenised, and it drops what the model does not take.",
        cure="tokenise before, or use a trainer that does (hf-recipes sft, TRL's SFTTrainer); a collator of your "
        "own wants "
        "remove_unused_columns: false",
        example="ValueError: No columns in the dataset match the model's forward method signature: (input_ids, "
        "attention_mask, …). The following columns have been ignored: [completion, prompt].",
        seen="transformers 5.24, provoked",
    ),
}
