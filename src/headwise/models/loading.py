"""Load a model and its tokenizer from a folder or the hub, and check that they are complete and fit
each other."""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlparse

import huggingface_hub
import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto as auto

from headwise.core.checks import shown
from headwise.core.errors import ModelError, ParameterError
from headwise.core.files import similar_path
from headwise.models.devices import stored_weights
from headwise.models.fingerprint import remember
from headwise.models.sites import NO_ATTENTION, has_attention

# The minor releases of transformers that the tests pass with: the tap uses its attention and mask
# interfaces and a private attribute of its configs, and what these accept has changed between minor
# releases. `pyproject.toml` and the workflow of the tests have the same two.
OLDEST_TRANSFORMERS = (5, 15)
NEWEST_TRANSFORMERS = (5, 22)
TASKS = ("lm", "classification")
HALF = (torch.float16, torch.bfloat16)
LM_NAMES = (
    "ForMaskedLM",
    "ForPreTraining",
    "ForCausalLM",
    "LMHeadModel",
    "LMHead",
    "WithLMHeadModel",
    "ForConditionalGeneration",
)
MAX_CONFIG_BYTES = 16 << 20
MAX_PARTS = 2_000
PARTS = re.compile(r"layer(s|$)|experts?$|blocks?$|depths?$|stages?$")
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tokenizer_config.json",
)


def check_transformers() -> None:
    """Reject releases of transformers that headwise was not tested with."""
    installed = transformers.__version__
    major, minor = installed.split(".")[:2]
    if OLDEST_TRANSFORMERS <= (int(major), int(minor)) <= NEWEST_TRANSFORMERS:
        return
    oldest_major, oldest_minor = OLDEST_TRANSFORMERS
    newest_major, newest_minor = NEWEST_TRANSFORMERS
    wanted = f"transformers>={oldest_major}.{oldest_minor},<{newest_major}.{newest_minor + 1}"
    raise ModelError(
        f"transformers {installed} is installed; headwise is tested with "
        f"{oldest_major}.{oldest_minor} to {newest_major}.{newest_minor}: pip install '{wanted}'."
    )


def load_model(
    name: str | Path,
    task: str | None,
    device: torch.device,
    dtype: torch.dtype | None,
    notes: list[str],
    device_map: str | dict[str, Any] | None = None,
) -> transformers.PreTrainedModel:
    """Load a model from a folder or the hub.

    Parameters
    ----------
    name : str or Path
        A folder or a hub name.
    task : str, optional
        `lm` or `classification`; by default the head that the checkpoint has.
    device : torch.device
        Where the model goes, without a map.
    dtype : torch.dtype, optional
        By default the checkpoint's own on a GPU, at least float32 on a CPU.
    notes : list of str
        Gets what a user should know.
    device_map : str or dict, optional
        Where the parts of the model go.
    """
    if task is not None and task not in TASKS:
        raise ParameterError(f"`task` must be one of {', '.join(TASKS)}; it is {task!r}.")
    where = located(name)
    config = load_config(name)
    auto_class = _class_for(config, task, name)
    if auto_class is transformers.AutoModel and type(config) in auto.MODEL_MAPPING:
        # Say that it reads no text before its weights are looked for.
        model_class: Any = auto.MODEL_MAPPING[type(config)]
        check_text(model_class, str(name))
    check_attention(auto_class, config)
    config_dtype = getattr(config, "dtype", None)
    # A config may name float16 for weights that are stored in float32: loading in float32 at once
    # loses nothing on the way. A spread model cannot be converted afterwards.
    needs_float32 = device.type == "cpu" and (config_dtype in HALF or device_map is not None)
    load_dtype = dtype or (torch.float32 if needs_float32 else "auto")
    load = partial(
        _load,
        where=where,
        config=config,
        name=name,
        dtype=load_dtype,
        placement=_placement(device, device_map),
    )
    model, missing = load(auto_class)
    base = base_prefix(model)
    missing_head = [key for key in missing if base and not key.startswith(base)]
    missing_body = []
    for key in missing:
        if key not in missing_head and ".pooler." not in f".{key}":
            missing_body.append(key)
    if missing_body:
        raise ModelError(
            f"The checkpoint of '{name}' lacks {len(missing_body)} weights of "
            f"{type(model).__name__}, the first is '{missing_body[0]}'; it is incomplete or of "
            "another architecture."
        )
    if missing_head and task == "lm":
        raise ModelError(
            f"The checkpoint of '{name}' has no language-modelling head ('{missing_head[0]}' is "
            "missing); open it without `task`."
        )
    if missing_head and task is None:
        del model  # otherwise both would be in memory at once
        model, missing = load(transformers.AutoModel)
        notes.append(
            f"The checkpoint has no weights for the head of {auto_class.__name__}; it was opened "
            "without one."
        )
    elif missing_head:
        notes.append(
            f"The classifier was newly initialised: {', '.join(missing_head)} are not in the "
            "checkpoint."
        )
    if any(".pooler." in f".{key}" for key in missing):
        notes.append("The pooler was newly initialised: its weights are not in the checkpoint.")
    checkpoint_dtype = next(model.parameters()).dtype
    if dtype is None and load_dtype is torch.float32:
        checkpoint_dtype = config_dtype
    if dtype is None and device.type == "cpu" and checkpoint_dtype in HALF:
        if load_dtype == "auto":
            model.to(torch.float32)
        dtype_name = str(checkpoint_dtype).removeprefix("torch.")
        notes.append(f"The checkpoint is in {dtype_name}; on a CPU it is opened in float32.")
    if device_map is None:
        model.to(device)
    model.train(False)
    if not missing:  # weights that are not in the files were drawn at random
        remember(model, where)
    return model


def _placement(device: torch.device, device_map: str | dict[str, Any] | None) -> dict[str, Any]:
    """Return the argument that sends weights to their devices while they are read; without
    accelerate they go through memory first."""
    if device_map is not None:
        return {"device_map": device_map}
    if device.type != "cpu" and importlib.util.find_spec("accelerate") is not None:
        return {"device_map": {"": str(device)}}
    return {}


def as_device(name: torch.device | str | None) -> torch.device:
    """Return the device that a user named, or the best available for None; reject one that cannot
    be used."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ParameterError(
            f"`device` must be cpu, cuda, cuda:1, mps or the like; it is {shown(name)}."
        ) from error
    try:
        if device.type == "meta":
            raise RuntimeError("it holds no data")
        torch.zeros(1, device=device).item()
    except Exception as error:  # each back end raises its own errors if it is missing or broken
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise ParameterError(
            f"The device '{device}' cannot be used here ({reason}); give cpu, or leave `device` "
            "out for the best available."
        ) from error
    return device


def located(name: str | Path) -> str:
    """Return a folder that exists, or a hub name; reject a path that does not exist."""
    text = str(name)
    try:
        path = Path(text).expanduser()
        is_folder = path.is_dir()
    except (OSError, ValueError, RuntimeError) as error:
        # Too long, a character that no name may have, or no such home folder. An error of the
        # system names the path once more: its reason alone is said, and of a long name the start.
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"'{text:.80}' is no name of a folder ({reason}).") from error
    if is_folder:
        if not (path / "config.json").is_file():
            raise ModelError(
                f"The folder '{text}' has no config.json, so it is no model in the format of "
                "transformers."
            )
        return str(path)
    if path.is_file():
        raise ModelError(
            f"'{text}' is a file; give the folder that holds config.json and the weights."
        )
    looks_like_path = text.startswith((".", "/", "~")) or text.count("/") > 1
    if isinstance(name, Path) or looks_like_path or not text:
        raise ModelError(f"There is no folder '{text}'.{similar_path(path)}")
    return text


def model_path(model: str | Path | None) -> str:
    """Return the folder or hub name of a model; default: the built-in model's folder."""
    if model is None:
        from headwise.models.demo import demo_model_path

        return str(demo_model_path())
    return located(model)


def load_config(name: str | Path) -> Any:
    """Return the config of a model in a folder or on the hub."""
    check_transformers()
    where = located(name)
    file = Path(where) / "config.json"
    if file.is_file() and file.stat().st_size > MAX_CONFIG_BYTES:
        raise ModelError(
            f"The config.json of '{name}' has over {MAX_CONFIG_BYTES:,} bytes, which none of a "
            "model has."
        )
    with plain_errors(name, "config.json"):
        config = transformers.AutoConfig.from_pretrained(
            where, trust_remote_code=False, local_files_only=offline(where)
        )
        part_counts = list(_part_counts(config.to_dict()))
    for key, count in part_counts:
        if count > MAX_PARTS:
            raise ModelError(
                f"The config.json of '{name}' says {key} = {shown(count)}; at most {MAX_PARTS:,} "
                "are supported: the file is damaged, or no model."
            )
    return config


def check_attention(auto_class: Any, config: Any) -> None:
    """Reject a model without attention by its config alone, before its weights are fetched."""
    if hasattr(config.get_text_config(), "num_attention_heads"):
        return
    with quiet(), torch.device("meta"):
        try:
            skeleton = auto_class.from_config(copy.deepcopy(config), trust_remote_code=False)
        except Exception:  # loading reports better what is missing
            return
    if not has_attention(skeleton):
        raise ModelError(NO_ATTENTION.format(type(skeleton).__name__))


def _part_counts(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the numbers of parts (layers, experts) that a config names: all of them would be built
    before weights are looked for."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _part_counts(value)
        elif PARTS.search(str(key)):
            for count in value if isinstance(value, list) else [value]:
                if type(count) is int:
                    yield str(key), count


def offline(where: str) -> bool:
    """Return whether the hub is out of reach: then only the cache is searched, at once instead of
    after many tries."""
    if Path(where).is_dir():
        return True
    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    if any(os.environ.get(name) for name in proxies):
        return False  # a proxy resolves names for us
    try:
        socket.getaddrinfo(urlparse(huggingface_hub.constants.ENDPOINT).hostname, 443)
    except OSError:
        return True
    return False


def _class_for(config: Any, task: str | None, name: str | Path) -> Any:
    if task is None:
        architecture = (getattr(config, "architectures", None) or [""])[0]
        is_discriminator = architecture.startswith("ElectraForPreTraining")
        if architecture.endswith("ForSequenceClassification"):
            task = "classification"
        elif architecture.endswith(LM_NAMES) and not is_discriminator:
            task = "lm"
    kind = config.model_type
    if task == "classification":
        return transformers.AutoModelForSequenceClassification
    if task == "lm":
        if config.is_encoder_decoder and kind in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
            return transformers.AutoModelForSeq2SeqLM
        is_decoder = getattr(config, "is_decoder", False) or config.is_encoder_decoder
        if kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not is_decoder:
            return transformers.AutoModelForMaskedLM
        if kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            return transformers.AutoModelForCausalLM
        if kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
            return transformers.AutoModelForMaskedLM
        raise ModelError(
            f"'{name}' ({kind}) has no language-modelling head in transformers; open it without "
            "`task`."
        )
    return transformers.AutoModel


def _load(
    auto_class: Any,
    *,
    where: str,
    config: Any,
    name: str | Path,
    dtype: Any,
    placement: dict[str, Any],
) -> tuple[transformers.PreTrainedModel, list[str]]:
    """Load a model; return it with the names of the weights that the checkpoint lacks."""
    with plain_errors(name, "weights"):
        model, info = auto_class.from_pretrained(
            where,
            config=copy.deepcopy(config),
            attn_implementation="eager",
            dtype=dtype,
            trust_remote_code=False,
            output_loading_info=True,
            local_files_only=offline(where),
            **placement,
        )
    mismatched = []
    for key in info.get("mismatched_keys", ()):
        mismatched.append(str(key[0] if isinstance(key, tuple) else key))
    if mismatched:
        raise ModelError(
            f"The weight '{min(mismatched)}' in '{name}' has another shape than its config.json "
            "says."
        )
    return model, sorted(info["missing_keys"])


def base_prefix(model: transformers.PreTrainedModel) -> str:
    prefix = model.base_model_prefix
    return f"{prefix}." if prefix and hasattr(model, prefix) else ""


@contextmanager
def plain_errors(name: str | Path, part: str) -> Iterator[None]:
    """Turn whatever transformers raises while loading into a `ModelError` of one sentence."""
    try:
        with quiet():
            yield
    except (ModelError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # OSError, ValueError, KeyError, errors of safetensors and pickle
        reason = " ".join(str(error).split())[:300]
        if "ignore_mismatched_sizes" in str(error):
            # transformers prints a report instead, which is not shown here.
            reason = "some have other shapes than its config.json says"
        reason = f"{type(error).__name__}: {reason}"
        if Path(str(name)).expanduser().is_dir():
            raise ModelError(f"The {part} of '{name}' cannot be read ({reason}).") from error
        if isinstance(error, OSError):
            raise ModelError(
                f"'{name}' is neither a folder here nor a model that can be fetched from the hub "
                "now; give a folder, or check the name and the connection."
            ) from error
        raise ModelError(f"'{name}' cannot be opened ({reason}).") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the load report and progress bars of transformers: notes and errors say what
    matters."""
    transformers_logging = cast("Any", transformers.utils.logging)
    loggers = [logging.getLogger(name) for name in ("transformers", "accelerate")]
    levels = [logger.level for logger in loggers]
    had_progress_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if had_progress_bar:
            transformers_logging.enable_progress_bar()


# --- tokenizers -----------------------------------------------------------------------------------


def load_tokenizer(name: str | Path) -> Any:
    """Return the fast tokenizer beside a model."""
    where = located(name)
    folder = Path(where)
    if folder.is_dir() and not any((folder / file).is_file() for file in TOKENIZER_FILES):
        raise ModelError(
            f"The folder '{name}' has no tokenizer; put tokenizer.json there, or pass `tokenizer`."
        )
    with plain_errors(name, "tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(
            where, use_fast=True, trust_remote_code=False, local_files_only=offline(where)
        )


# --- checks ---------------------------------------------------------------------------------------


_SUM_DTYPES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


def check_weights(model: nn.Module, name: str) -> None:
    """Reject NaN and infinity in the weights."""
    for key, weight in stored_weights(model):
        if not weight.is_floating_point() or weight.is_meta:
            continue
        # A sum shows NaN and infinity too, and is faster than a test of each weight. It may also
        # overflow: then each is tested.
        if weight.dtype in _SUM_DTYPES:
            total = weight.detach().sum(dtype=_SUM_DTYPES[weight.dtype])
            if bool(torch.isfinite(total)):
                continue
        if not bool(torch.isfinite(weight).all()):
            raise ModelError(
                f"The weights of '{name}' hold NaN or infinity, first in '{key}'; get an intact copy."
            )


def check_text(model: type, name: str) -> None:
    """Reject a class of model that reads no text."""
    input_name = getattr(model, "main_input_name", "input_ids")
    if input_name == "input_ids":
        return
    content = input_name.replace("input_", "").replace("_", " ")
    if input_name == "pixel_values":
        content = "images"
    raise ModelError(
        f"'{name}' ({model.__name__}) reads {content}, no text, so it is not supported; give a model "
        "of text."
    )


def check_tokenizer(model: transformers.PreTrainedModel, tokenizer: Any, name: str) -> None:
    """Reject a tokenizer with ids that the model has no embedding for."""
    embeddings = model.get_input_embeddings()
    vocabulary = getattr(embeddings, "num_embeddings", None) or len(embeddings.weight)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= vocabulary:
        raise ModelError(
            f"The tokenizer does not fit '{name}': it makes ids up to {largest}, but the model has "
            f"embeddings for 0 to {vocabulary - 1}."
        )


def unwrapped(module: nn.Module) -> transformers.PreTrainedModel:
    """Return the model inside wrappers that compile or spread it."""
    while not isinstance(module, transformers.PreTrainedModel):
        inner = getattr(module, "_orig_mod", None) or getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            raise ModelError(
                f"A {type(module).__name__} is no model of transformers; give a folder, a hub name "
                "or a PreTrainedModel."
            )
        module = inner
    return module
