"""Loading a model and its tokenizer from a folder or the hub, and checking that they are whole and
fit each other."""

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
from headwise.models.devices import stored_weights
from headwise.models.fingerprint import remember
from headwise.models.sites import NO_ATTENTION, has_attention

TASKS = ("lm", "classification")
HALF = (torch.float16, torch.bfloat16)
LM_NAMES = (
    "ForMaskedLM", "ForPreTraining", "ForCausalLM", "LMHeadModel", "LMHead", "WithLMHeadModel",
    "ForConditionalGeneration",
)  # fmt: skip
LONGEST_CONFIG = 16 << 20  # bytes
MOST_PARTS = 2_000
PARTS = re.compile(r"layer(s|$)|experts?$|blocks?$|depths?$|stages?$")
TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
    "spm.model", "tokenizer_config.json",
)  # fmt: skip


def load_model(
    name: str | Path,
    task: str | None,
    device: torch.device,
    dtype: torch.dtype | None,
    notes: list[str],
    device_map: str | dict[str, Any] | None = None,
) -> transformers.PreTrainedModel:
    """The model in a folder or under a hub name, with the head that `task` asks for (None: the one
    the checkpoint has), on one device or spread by a map."""
    if task is not None and task not in TASKS:
        raise ParameterError(f"`task` must be one of {', '.join(TASKS)}; it is {task!r}.")
    where = located(name)
    config = load_config(name)
    chosen = _class_for(config, task, name)
    if (
        chosen is transformers.AutoModel and type(config) in auto.MODEL_MAPPING
    ):  # before its weights are looked for
        made: Any = auto.MODEL_MAPPING[type(config)]
        check_text(made, str(name))
    check_attention(chosen, config)
    said = getattr(config, "dtype", None)
    # A config may say float16 of weights that are stored in float32: asking for float32 at once
    # loses nothing on the way. What is spread cannot be turned into another type afterwards.
    single = device.type == "cpu" and (said in HALF or device_map is not None)
    asked = dtype or (torch.float32 if single else "auto")
    load = partial(
        _load,
        where=where,
        config=config,
        name=name,
        dtype=asked,
        placed=_placed(device, device_map),
    )
    model, missing = load(chosen)
    base = base_prefix(model)
    heads = [key for key in missing if base and not key.startswith(base)]
    body = [key for key in missing if key not in heads and ".pooler." not in f".{key}"]
    if body:
        raise ModelError(
            f"The checkpoint of '{name}' lacks {len(body)} weights of {type(model).__name__}, the first is "
            f"'{body[0]}'; it is not whole or of another kind."
        )
    if heads and task == "lm":
        raise ModelError(
            f"The checkpoint of '{name}' has no language-model head ('{heads[0]}' is missing); open it without `task`."
        )
    if heads and task is None:
        del model  # two would be held at once otherwise
        model, missing = load(transformers.AutoModel)
        notes.append(
            f"The checkpoint has no weights for the head of {chosen.__name__}; it was opened without one."
        )
    elif heads:
        notes.append(
            f"The classifier was newly initialised: {', '.join(heads)} are not in the checkpoint."
        )
    if any(".pooler." in f".{key}" for key in missing):
        notes.append("The pooler was newly initialised: its weights are not in the checkpoint.")
    found = said if asked is torch.float32 and dtype is None else next(model.parameters()).dtype
    if dtype is None and device.type == "cpu" and found in HALF:
        if asked == "auto":
            model.to(torch.float32)
        notes.append(
            f"The checkpoint is in {str(found).removeprefix('torch.')}; on a CPU it is opened in float32."
        )
    if device_map is None:
        model.to(device)
    model.train(False)
    if not missing:  # what is not in the files was drawn
        remember(model, where)
    return model


def _placed(device: torch.device, device_map: str | dict[str, Any] | None) -> dict[str, Any]:
    """How weights are put where they belong while they are read; without accelerate they go through
    memory first."""
    if device_map is not None:
        return {"device_map": device_map}
    if device.type != "cpu" and importlib.util.find_spec("accelerate") is not None:
        return {"device_map": {"": str(device)}}
    return {}


def as_device(given: torch.device | str | None) -> torch.device:
    """The device that a user named, the best there is for None; one that is none, or is not here,
    is refused."""
    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ParameterError(
            f"`device` must be cpu, cuda, cuda:1, mps or the like; it is {shown(given)}."
        ) from error
    try:
        if device.type == "meta":
            raise RuntimeError("it holds no data")
        torch.zeros(1, device=device).item()
    except Exception as error:  # what a back end raises that is not built in, not there or broken differs by back end
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise ParameterError(
            f"The device '{device}' cannot be used here ({reason}); give cpu, or nothing for the best there is."
        ) from error
    return device


def located(name: str | Path) -> str:
    """A folder that exists, or a hub name; a path that leads nowhere is refused."""
    text = str(name)
    try:
        path = Path(text).expanduser()
        there = path.is_dir()
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # too long, a character that no name has, no such home
        raise ModelError(f"'{text}' is no name of a folder ({error}).") from error
    if there:
        if not (path / "config.json").is_file():
            raise ModelError(
                f"The folder '{text}' has no config.json, so it is no model in the format of transformers."
            )
        return str(path)
    if path.is_file():
        raise ModelError(
            f"'{text}' is a file; give the folder that holds config.json and the weights."
        )
    if (
        isinstance(name, Path)
        or text.startswith((".", "/", "~"))
        or text.count("/") > 1
        or not text
    ):
        raise ModelError(f"There is no folder '{text}'.")
    return text


def model_path(model: str | Path | None) -> str:
    """What a user named as a model, as a folder or a hub name: the demo model's folder for None."""
    if model is None:
        from headwise.models.demo import demo_model_path

        return str(demo_model_path())
    return located(model)


def load_config(name: str | Path) -> Any:
    """The config of a model in a folder or on the hub."""
    where = located(name)
    file = Path(where) / "config.json"
    if file.is_file() and file.stat().st_size > LONGEST_CONFIG:
        raise ModelError(
            f"The config.json of '{name}' has over {LONGEST_CONFIG:,} bytes, which none of a model has."
        )
    with spoken(name, "config.json"):
        config = transformers.AutoConfig.from_pretrained(
            where, trust_remote_code=False, local_files_only=offline(where)
        )
        counted = list(_counted(config.to_dict()))
    for key, count in counted:
        if count > MOST_PARTS:
            raise ModelError(
                f"The config.json of '{name}' says {key} = {shown(count)}; at most {MOST_PARTS:,} are served, so it is "
                "damaged or no model to open."
            )
    return config


def check_attention(chosen: Any, config: Any) -> None:
    """Refuse a model without attention by its config alone, before its weights are looked for (or
    fetched)."""
    if hasattr(config.get_text_config(), "num_attention_heads"):
        return
    with quiet(), torch.device("meta"):
        try:
            made = chosen.from_config(copy.deepcopy(config), trust_remote_code=False)
        except Exception:  # what it lacks is said better where it is loaded
            return
    if not has_attention(made):
        raise ModelError(NO_ATTENTION.format(type(made).__name__))


def _counted(facts: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """What a config says of how many parts (layers, experts) a model has: each is built before
    weights are looked for."""
    for key, value in facts.items():
        if isinstance(value, dict):
            yield from _counted(value)
        elif PARTS.search(str(key)):
            yield from (
                (str(key), one)
                for one in (value if isinstance(value, list) else [value])
                if type(one) is int
            )


def offline(where: str) -> bool:
    """Whether the hub is out of reach: then only what is already cached is looked for, at once
    instead of after many tries."""
    if Path(where).is_dir():
        return True
    if any(
        os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ):
        return False  # a proxy resolves names for us
    try:
        socket.getaddrinfo(urlparse(huggingface_hub.constants.ENDPOINT).hostname, 443)
    except OSError:
        return True
    return False


def _class_for(config: Any, task: str | None, name: str | Path) -> Any:
    if task is None:
        architecture = (getattr(config, "architectures", None) or [""])[0]
        if architecture.endswith("ForSequenceClassification"):
            task = "classification"
        elif architecture.endswith(LM_NAMES) and not architecture.startswith(
            "ElectraForPreTraining"
        ):
            task = "lm"
    kind = config.model_type
    if task == "classification":
        return transformers.AutoModelForSequenceClassification
    if task == "lm":
        if config.is_encoder_decoder and kind in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
            return transformers.AutoModelForSeq2SeqLM
        if (
            kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
            and not getattr(config, "is_decoder", False)
            and not config.is_encoder_decoder
        ):
            return transformers.AutoModelForMaskedLM
        if kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            return transformers.AutoModelForCausalLM
        if kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
            return transformers.AutoModelForMaskedLM
        raise ModelError(
            f"'{name}' ({kind}) has no language-model head in transformers; open it without `task`."
        )
    return transformers.AutoModel


def _load(
    chosen: Any, *, where: str, config: Any, name: str | Path, dtype: Any, placed: dict[str, Any]
) -> tuple[transformers.PreTrainedModel, list[str]]:
    with spoken(name, "weights"):
        model, info = chosen.from_pretrained(
            where,
            config=copy.deepcopy(config),
            attn_implementation="eager",
            dtype=dtype,
            trust_remote_code=False,
            output_loading_info=True,
            local_files_only=offline(where),
            **placed,
        )
    wrong = sorted(
        str(key[0] if isinstance(key, tuple) else key) for key in info.get("mismatched_keys", ())
    )
    if wrong:
        raise ModelError(
            f"The weight '{wrong[0]}' in '{name}' has another shape than its config.json says."
        )
    return model, sorted(info["missing_keys"])


def base_prefix(model: transformers.PreTrainedModel) -> str:
    prefix = model.base_model_prefix
    return f"{prefix}." if prefix and hasattr(model, prefix) else ""


@contextmanager
def spoken(name: str | Path, what: str) -> Iterator[None]:
    """Turn what transformers raises while loading into one sentence."""
    try:
        with quiet():
            yield
    except (ModelError, KeyboardInterrupt, MemoryError):
        raise
    except (
        Exception
    ) as error:  # OSError, ValueError, KeyError, errors of safetensors and pickle, by what is wrong
        text = " ".join(str(error).split())
        if (
            "ignore_mismatched_sizes" in text
        ):  # transformers prints a report, which would be lost here
            text = "some have other shapes than its config.json says"
        if Path(str(name)).expanduser().is_dir():
            raise ModelError(
                f"The {what} of '{name}' cannot be read ({type(error).__name__}: {text[:300]})."
            ) from error
        if isinstance(error, OSError):
            raise ModelError(
                f"'{name}' is neither a folder here nor a model that can be fetched from the hub now; give a folder, "
                "or check the name and the connection."
            ) from error
        raise ModelError(
            f"'{name}' cannot be opened ({type(error).__name__}: {text[:300]})."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the load report and progress bars of transformers off the screen: what matters of them
    is said in notes and errors."""
    theirs = cast("Any", transformers.utils.logging)
    loggers = [logging.getLogger(name) for name in ("transformers", "accelerate")]
    levels, bars = [logger.level for logger in loggers], theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            theirs.enable_progress_bar()


# --- tokenizers -----------------------------------------------------------------------------------


def load_tokenizer(name: str | Path) -> Any:
    """The fast tokenizer beside a model."""
    where = located(name)
    if Path(where).is_dir() and not any((Path(where) / file).is_file() for file in TOKENIZER_FILES):
        raise ModelError(
            f"The folder '{name}' has no tokenizer; put tokenizer.json there, or pass `tokenizer`."
        )
    with spoken(name, "tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(
            where, use_fast=True, trust_remote_code=False, local_files_only=offline(where)
        )


# --- checks ---------------------------------------------------------------------------------------


_SUMMED = {torch.float16: torch.float32, torch.bfloat16: torch.float32} | {
    dtype: dtype for dtype in (torch.float32, torch.float64)
}


def check_weights(model: nn.Module, name: str) -> None:
    """Refuse NaN and infinity in the weights."""
    for key, weight in stored_weights(model):
        if not weight.is_floating_point() or weight.is_meta:
            continue
        # NaN and infinity are in the sum too, which is quicker to take than a look at each; a sum
        # may also overflow.
        if weight.dtype in _SUMMED and bool(
            torch.isfinite(weight.detach().sum(dtype=_SUMMED[weight.dtype]))
        ):
            continue
        if not bool(torch.isfinite(weight).all()):
            raise ModelError(
                f"The weights of '{name}' hold NaN or infinity, first in '{key}'; get an intact copy."
            )


def check_text(model: type, name: str) -> None:
    """Refuse a kind of model that reads no text."""
    wanted = getattr(model, "main_input_name", "input_ids")
    if wanted != "input_ids":
        read = {"pixel_values": "images"}.get(
            wanted, wanted.replace("input_", "").replace("_", " ")
        )
        raise ModelError(
            f"'{name}' ({model.__name__}) reads {read}, no text, so it is not served; give a model of text."
        )


def check_tokenizer(model: transformers.PreTrainedModel, tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that makes ids the model has no embedding for."""
    embeddings = model.get_input_embeddings()
    rows = getattr(embeddings, "num_embeddings", None) or len(embeddings.weight)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= rows:
        raise ModelError(
            f"The tokenizer does not fit '{name}': it makes ids up to {largest}, but the model has embeddings for 0 to "
            f"{rows - 1}."
        )


def unwrapped(module: nn.Module) -> transformers.PreTrainedModel:
    """The model inside wrappers that compile or spread it."""
    while not isinstance(module, transformers.PreTrainedModel):
        inner = getattr(module, "_orig_mod", None) or getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            raise ModelError(
                f"A {type(module).__name__} is no model of transformers; give a folder, a hub name or a "
                "PreTrainedModel."
            )
        module = inner
    return module
