"""Datasets of the Hugging Face hub, or on disk in the hub's format, read with the optional package
`datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from headwise.core.errors import InputError, MissingExtraError, ParameterError
from headwise.text.corpus import Corpus, Notes
from headwise.text.example import Example
from headwise.text.readers.columns import with_text
from headwise.text.readers.limits import Limits, Walk, guarded, reading
from headwise.text.readers.rows import example_of_row

HOW = "give hf:dataset/config:split, for instance hf:glue/mrpc:train."


def open_hub(
    spec: str,
    limits: Limits | None = None,
    bad_rows: str | None = None,
    *,
    streaming: bool = True,
    text_field: str | None = None,
) -> Corpus:
    """Open a dataset of the hub, or a folder that holds one.

    The columns may be those of JSONL rows or those of GLUE (`sentence1`, `sentence2`, `label`,
    ...). Class labels are replaced by their names. No code of a dataset is run.

    Parameters
    ----------
    spec : str
        `hf:dataset/config:split`, `hf:owner/dataset/config:split`, `hf:owner/dataset:split` or
        `hf:folder:split`.
    limits : Limits, optional
        The greatest sizes that are accepted.
    bad_rows : {"error", "skip"}, optional
        What happens to rows that cannot be read (see `Walk`).
    streaming : bool, default True
        Whether to fetch rows as they are read, instead of the whole dataset first.
    text_field : str, optional
        The column of the text, or `text,pair`; default: recognised by its name.
    """
    dataset, config, split = parse_hub(spec)
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "datasets", f"Reading '{spec}'") from None
    loaded = _load(datasets, dataset, config, split, streaming)
    names = _class_names(loaded)

    def stream(notes: Notes) -> Iterator[Example]:
        walk = Walk(limits or Limits(), notes, spec, bad_rows=bad_rows)
        return guarded(
            _examples(loaded, spec, names, text_field, walk), walk, "a dataset of the hub"
        )

    info = getattr(loaded, "info", None)
    licence = getattr(info, "license", "") or ""
    description = getattr(info, "description", "") or ""
    description = " ".join(description.split())[:300]
    if Path(dataset).is_dir():
        # Without the path: a name goes into provenance, which must not tell about this machine.
        name = f"{Path(dataset).name}:{split}"
    else:
        name = spec.removeprefix("hf:")
    return Corpus(name, stream, licence=licence, description=description or "a dataset of the hub")


def _examples(
    loaded: Any, spec: str, names: Mapping[str, list[str]], text_field: str | None, walk: Walk
) -> Iterator[Example]:
    for number, row in enumerate(loaded, 1):  # the package fetches and decodes as it goes
        walk.label = f"{spec}, row {number}"
        example = walk.attempt(partial(row_example, row, walk.label, names, text_field))
        if example is not None:
            yield example


def parse_hub(spec: str) -> tuple[str, str | None, str]:
    """Return dataset, configuration and split of a spec.

    `a/b` may be dataset and configuration or owner and dataset: it is read as the former here, and
    `_load` falls back to the latter.
    """
    body, colon, split = spec.removeprefix("hf:").rpartition(":")
    if not colon or not body or not split:
        raise ParameterError(f"'{spec}' names no split; {HOW}")
    if Path(body).is_dir():
        return body, None, split
    parts = body.split("/")
    if len(parts) > 3 or not all(parts):
        raise ParameterError(f"'{spec}' is neither a folder nor a dataset; {HOW}")
    if len(parts) == 3:
        return "/".join(parts[:2]), parts[2], split
    config = parts[1] if len(parts) == 2 else None
    return parts[0], config, split


def _load(datasets: Any, dataset: str, config: str | None, split: str, streaming: bool) -> Any:
    folder = Path(dataset)
    spec = f"hf:{dataset}{'/' + config if config else ''}:{split}"
    with reading(spec, "the dataset cannot be opened"):
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            loaded = datasets.load_from_disk(str(folder))
            if not hasattr(loaded, "keys"):
                return loaded
            if split not in loaded:
                raise InputError(
                    f"{spec}: there is no split '{split}'; it has {', '.join(loaded)}."
                )
            return loaded[split]
        if config is None:
            return datasets.load_dataset(dataset, split=split, streaming=streaming)
        try:
            return datasets.load_dataset(dataset, config, split=split, streaming=streaming)
        except Exception as first_error:
            # `owner/dataset` without a configuration looks the same.
            owner_and_name = f"{dataset}/{config}"
            try:
                return datasets.load_dataset(owner_and_name, split=split, streaming=streaming)
            except Exception:
                raise first_error from None


def _class_names(loaded: Any) -> Mapping[str, list[str]]:
    """Return the class names of each column that has them."""
    features = getattr(loaded, "features", None) or {}
    names_of_column = {}
    for column, feature in features.items():
        if getattr(feature, "names", None):
            names_of_column[column] = list(feature.names)
    return names_of_column


def row_example(
    row: Mapping[str, Any],
    where: str,
    names: Mapping[str, list[str]],
    text_field: str | None = None,
) -> Example:
    """Return one row as an example, by the JSONL columns, by those of GLUE, or by `text_field`."""
    values = dict(row)
    for column, labels in names.items():
        number = values.get(column)
        if isinstance(number, int):  # -1 stands for an unknown label in test splits
            values[column] = labels[number] if 0 <= number < len(labels) else None
    return example_of_row(with_text(values, where, text_field), where)
