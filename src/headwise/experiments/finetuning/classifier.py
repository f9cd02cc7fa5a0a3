"""Models with a classifier for a task: the model's own classification class, or a new classifier on
one layer or on chosen heads."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.core.checks import check_types, one_of
from headwise.core.errors import InputError, ModelError, OutputError, ParameterError
from headwise.core.labels import head_name
from headwise.experiments.finetuning.options import POOLINGS, STARTS
from headwise.models import HeadModel, loading
from headwise.models.forward_call import has_segments
from headwise.models.pooling import chosen_heads
from headwise.models.sites import LayerCount, Sites
from headwise.models.sizes import padding_id
from headwise.models.tap import Call, TapSession, use_session
from headwise.models.vectors import pool_tokens, token_rule
from headwise.text.tasks import Task

HEAD_FILE = "classifier.safetensors"
HEAD_CONFIG = "classifier.json"
NORMAL = 0.02  # standard deviation of new weights where the config names none


@dataclass(frozen=True, slots=True)
class ClassifierOptions:
    """The options of a classifier: what it reads, and what its weights start from.

    Parameters
    ----------
    pooling : str, default "last_layer"
        `last_layer` (the model's own classification class), `best_layer` (the output of `layer`) or
        `top_heads` (the outputs of `heads`).
    start : str, default "pretrained"
        `none` (no training: pre-trained encoder, random classifier), `random` (all weights drawn
        from a normal distribution, then trained), `pretrained`, or `frozen` (only the head is
        trained).
    layer : int, optional
        The layer of `best_layer`.
    heads : sequence of (layer, head) or names like `L7H9`, optional
        The heads of `top_heads`.
    dropout : float, default 0.1
        Before the new head of `best_layer` and `top_heads`.
    new_pooler : bool, default False
        Draw the pooler of `last_layer` anew too.
    """

    pooling: str = "last_layer"
    start: str = "pretrained"
    layer: int | None = None
    heads: Sequence[Any] | None = None
    dropout: float = 0.1
    new_pooler: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        one_of("pooling", self.pooling, POOLINGS)
        one_of("start", self.start, STARTS)


class TaskModel(nn.Module):
    """A model that is trained: `forward(ids, types, attention_mask)` gives `[example, output]`.

    Attributes
    ----------
    encoder : PreTrainedModel
        The model of transformers inside.
    pad_id : int
        The token that fills batches.
    outputs : int
        How many numbers are predicted of an example.
    """

    encoder: PreTrainedModel
    pad_id: int
    outputs: int

    def head_modules(self) -> list[nn.Module]:
        """Return the parts after the encoder: what is new, and what is trained where the encoder is
        frozen."""
        raise NotImplementedError

    def save(self, folder: Path, tokenizer: Any) -> None:
        """Write an ordinary model folder."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Train the head only; what is frozen stays in evaluation mode."""
        self.requires_grad_(False)
        for module in self.head_modules():
            module.requires_grad_(True)

    def training_mode(self, frozen: bool) -> None:
        """Put the model, or where the encoder is frozen its head alone, into training mode."""
        self.train(not frozen)
        for module in self.head_modules():
            module.train()


class OwnClassifier(TaskModel):
    """The model's own class for sequence classification: for BERT and its kin, `[CLS]` of the last
    layer; for decoders, the last token."""

    def __init__(self, encoder: PreTrainedModel, tokenizer: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.pad_id = padding_id(encoder, tokenizer)
        self.outputs = int(encoder.config.num_labels or 0)

    def head_modules(self) -> list[nn.Module]:
        base = self.encoder.base_model
        modules = []
        for name, child in self.encoder.named_children():
            if child is not base and name != self.encoder.base_model_prefix:
                modules.append(child)
        pooler = getattr(base, "pooler", None)
        if isinstance(pooler, nn.Module):
            modules.append(pooler)
        return modules

    def forward(self, ids: Tensor, types: Tensor, attention_mask: Tensor) -> Tensor:
        inputs = _inputs(self.encoder, self.encoder.config, ids, types, attention_mask)
        logits: Tensor = self.encoder(**inputs).logits
        return logits

    def save(self, folder: Path, tokenizer: Any) -> None:
        save_folder(self.encoder, tokenizer, folder)


def _inputs(
    part: nn.Module, config: Any, ids: Tensor, types: Tensor, attention_mask: Tensor
) -> dict[str, Any]:
    """Return the arguments that a part of a model takes: segments only where it has an embedding
    for them, and no cache."""
    accepted = inspect.signature(part.forward).parameters
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": attention_mask.long()}
    if "token_type_ids" in accepted and has_segments(config):
        inputs["token_type_ids"] = types
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    return inputs


class HeadOutputSession(TapSession):
    """A session that lets the model compute its attention as usual, dropout included, and keeps the
    head outputs of some layers."""

    def __init__(self, sites: Sites, layers: set[int]) -> None:
        self.layers = layers
        self.layer_count = LayerCount(sites)
        self.outputs: dict[int, Tensor] = {}  # layer -> [example, head, token, d_head]

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        output, weights = call.plain()
        layer = self.layer_count.of_call(call.module)
        if layer in self.layers:
            self.outputs[layer] = output.transpose(1, 2)
        return output, weights


class PooledClassifier(TaskModel):
    """Dropout, linear, tanh and a classifier (Jo & Myaeng 2020, App. A.4) on one layer's vector, or
    on the outputs of chosen heads one after the other.

    Parameters
    ----------
    encoder : PreTrainedModel
        A model of transformers without a head.
    tokenizer
        Its tokenizer.
    outputs : int
        How many numbers are predicted.
    layer : int, optional
        The layer whose output is taken; either this or `heads`.
    heads : sequence of (layer, head) or names like `L7H9`, optional
        The heads whose outputs are taken.
    dropout : float, default 0.1
        Before the first linear map, in training.
    name : str, optional
        Name of the model in errors; default: its class.

    Attributes
    ----------
    opened : HeadModel
        The encoder, opened.
    """

    def __init__(
        self,
        encoder: PreTrainedModel,
        tokenizer: Any,
        outputs: int,
        *,
        layer: int | None = None,
        heads: Sequence[Any] | None = None,
        dropout: float = 0.1,
        name: str = "",
    ) -> None:
        super().__init__()
        if (layer is None) == (heads is None):
            raise ParameterError(
                "A pooled classifier takes either `layer` or `heads`, exactly one of them."
            )
        self.opened = HeadModel.open(encoder, tokenizer=tokenizer)
        self.opened.name = name or self.opened.name
        self.encoder = encoder
        self.outputs = outputs
        self.pad_id = self.opened.pad_id
        self.token = token_rule(self.opened)
        if layer is not None and not 0 <= layer < self.opened.layers:
            raise ParameterError(
                f"There is no layer {layer}: {self.opened.name} has layers 0 to "
                f"{self.opened.layers - 1}."
            )
        self.layer = layer
        self.heads = None
        input_size = self.opened.hidden
        if heads is not None:
            self.heads = chosen_heads(heads, self.opened)
            input_size = len(self.heads) * self.opened.d_head
        hidden_size = self.opened.hidden or input_size
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(input_size, hidden_size)
        self.classifier = nn.Linear(hidden_size, outputs)
        draw_weights(self.dense, encoder.config)
        draw_weights(self.classifier, encoder.config)
        self.to(next(encoder.parameters()).device)

    def head_modules(self) -> list[nn.Module]:
        return [self.dropout, self.dense, self.classifier]

    def pooled(self, ids: Tensor, types: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the sentence vectors that the classifier reads."""
        model = self.opened
        if self.heads is None:
            assert self.layer is not None
            part = model.encoder_part or self.encoder
            inputs = _inputs(part, self.encoder.config, ids, types, attention_mask)
            hidden_states = part(**inputs, output_hidden_states=True).hidden_states
            return pool_tokens(hidden_states[self.layer + 1], attention_mask, self.token)
        session = HeadOutputSession(model.sites, {layer for layer, _ in self.heads})
        with use_session(session):
            model.run(ids, attention_mask, types)
        return self.joined(session.outputs, attention_mask)

    def joined(self, outputs: Mapping[int, Tensor], attention_mask: Tensor) -> Tensor:
        """Return the chosen heads' vectors one after the other, from `outputs[example, head, token,
        d_head]` of their layers."""
        vectors = []
        for layer, head in self.heads or ():
            vectors.append(pool_tokens(outputs[layer][:, head], attention_mask, self.token))
        return torch.cat(vectors, -1)

    def classify(self, pooled: Tensor) -> Tensor:
        """Return what is predicted from sentence vectors."""
        logits: Tensor = self.classifier(torch.tanh(self.dense(self.dropout(pooled))))
        return logits

    def forward(self, ids: Tensor, types: Tensor, attention_mask: Tensor) -> Tensor:
        return self.classify(self.pooled(ids, types, attention_mask))

    def save(self, folder: Path, tokenizer: Any) -> None:
        save_folder(self.encoder, tokenizer, folder)
        tensors = {}
        for name in ("dense", "classifier"):
            for key, value in getattr(self, name).state_dict().items():
                tensors[f"{name}.{key}"] = value.detach().cpu().contiguous()
        head_names = None
        if self.heads is not None:
            head_names = [head_name(*head) for head in self.heads]
        facts = {
            "layer": self.layer,
            "heads": head_names,
            "token": self.token,
            "dropout": self.dropout.p,
            "outputs": self.outputs,
        }
        try:
            save_file(tensors, folder / HEAD_FILE)
            (folder / HEAD_CONFIG).write_text(json.dumps(facts, indent=1) + "\n")
        except OSError as error:
            raise OutputError(
                f"The classifier cannot be written to '{folder}' ({error.strerror or error})."
            ) from error


# --- making them ----------------------------------------------------------------------------------


def make_classifier(
    model: str | Path,
    tokenizer: Any,
    task: Task,
    options: ClassifierOptions = ClassifierOptions(),
    device: torch.device | str = "cpu",
) -> TaskModel:
    """Return a model with a classifier for a task; new weights come from torch's current random
    state."""
    path = loading.located(model)
    config = loading.load_config(model)
    classifier: TaskModel
    if options.pooling == "last_layer":
        config.num_labels = task.outputs
        config.problem_type = "regression" if task.regression else "single_label_classification"
        if task.classes:
            config.id2label = dict(enumerate(task.classes))
            config.label2id = {label: number for number, label in enumerate(task.classes)}
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = tokenizer.pad_token_id
            if config.pad_token_id is None:
                config.pad_token_id = tokenizer.eos_token_id
        encoder = _load(
            transformers.AutoModelForSequenceClassification, path, config, model, options.start
        )
        classifier = OwnClassifier(encoder.to(device), tokenizer)
        if options.new_pooler:
            for module in classifier.head_modules():
                for part in module.modules():
                    if isinstance(part, nn.Linear):
                        draw_weights(part, config)
    else:
        encoder = _load(transformers.AutoModel, path, config, model, options.start).to(device)
        classifier = PooledClassifier(
            encoder,
            tokenizer,
            task.outputs,
            layer=options.layer,
            heads=options.heads,
            dropout=options.dropout,
            name=Path(path).name,
        )
    if options.start == "frozen":
        classifier.freeze()
    return classifier


def _load(auto_class: Any, path: str, config: Any, name: str | Path, start: str) -> PreTrainedModel:
    """Load a model, or draw all its weights where it starts at random; reject a checkpoint that
    lacks weights of the encoder."""
    with loading.plain_errors(name, "weights"):
        if start == "random":
            random_model: PreTrainedModel = auto_class.from_config(config, dtype=torch.float32)
            return random_model
        model: PreTrainedModel
        model, info = auto_class.from_pretrained(
            path,
            config=copy.deepcopy(config),
            dtype=torch.float32,
            trust_remote_code=False,
            output_loading_info=True,
            # A classifier of another task is drawn anew; anything else is rejected below.
            ignore_mismatched_sizes=True,
            local_files_only=loading.offline(path),
        )
    missing = list(info["missing_keys"])
    for key in info.get("mismatched_keys", ()):
        missing.append(str(key[0] if isinstance(key, tuple) else key))
    prefix = loading.base_prefix(model)
    missing_of_encoder = []
    for key in missing:
        is_of_encoder = not prefix or key.startswith(prefix)
        if is_of_encoder and ".pooler." not in f".{key}":
            missing_of_encoder.append(key)
    if missing_of_encoder:
        raise ModelError(
            f"The checkpoint of '{name}' has no fitting weight '{min(missing_of_encoder)}': it is "
            "not complete, or of another model."
        )
    return model


def open_classifier(
    folder: str | Path, device: torch.device | str = "cpu"
) -> tuple[TaskModel, Any]:
    """Open a fine-tuned model with its tokenizer, as `TaskModel.save` wrote it (or any folder of a
    sequence classifier)."""
    path = Path(loading.located(folder))
    tokenizer = loading.load_tokenizer(path)
    if (path / HEAD_CONFIG).is_file():
        try:
            facts = json.loads((path / HEAD_CONFIG).read_text())
            weights = load_file(path / HEAD_FILE)
            encoder = loading.load_model(path, None, loading.as_device(device), torch.float32, [])
            classifier = PooledClassifier(
                encoder,
                tokenizer,
                facts["outputs"],
                layer=facts["layer"],
                heads=facts["heads"],
                dropout=facts["dropout"],
                name=path.resolve().name,
            )
            classifier.load_state_dict({**classifier.state_dict(), **weights})
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise InputError(
                f"The classifier in '{path}' cannot be read ({type(error).__name__}: {error}); "
                "fine-tune it again."
            ) from error
        return classifier.eval(), tokenizer
    notes: list[str] = []
    model = loading.load_model(
        path, "classification", loading.as_device(device), torch.float32, notes
    )
    if any("classifier was newly initialised" in note for note in notes):
        raise ModelError(
            f"'{folder}' has no trained classifier; fine-tune it first with `headwise finetune`."
        )
    return OwnClassifier(model, tokenizer).eval(), tokenizer


def draw_weights(linear: nn.Linear, config: Any) -> None:
    """Draw weights from a normal distribution of the config's width; biases are zero."""
    deviation = getattr(config, "initializer_range", None) or NORMAL
    nn.init.normal_(linear.weight, std=deviation)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def save_folder(model: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer as an ordinary folder."""
    # While the tap is selected its name stands in the config; the folder must load anywhere.
    config = model.config
    before = getattr(config, "_attn_implementation_internal", None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config._attn_implementation_internal = None
        with loading.quiet():
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except OSError as error:
        raise OutputError(
            f"The model cannot be written to '{folder}' ({error.strerror or error})."
        ) from error
    finally:
        config._attn_implementation_internal = before
