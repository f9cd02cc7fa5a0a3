"""How often the OV circuit of a head ranks the right word first, and how often a circuit turned at
random does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats as scipy_stats
from torch import Tensor

from headwise.core.errors import InputError
from headwise.models import HeadModel
from headwise.models.devices import weight_in
from headwise.models.forward_call import only_in_this_thread
from headwise.models.generation import token_id
from headwise.models.structure import Structure
from headwise.models.weights import LayerWeights
from headwise.text.word_pairs import WordPair

COPIES = 4  # of a word in the input that shows what the first MLP makes of it
WORDS_AT_A_TIME = 64


@dataclass(frozen=True, slots=True, eq=False)
class TokenRelation:
    """One relation in tokens of a model.

    Attributes
    ----------
    sources, targets
        Place of each pair's two tokens in the list of all tokens.
    words
        The class: places of all tokens of the relation, sources and targets.
    target_in_class
        Place of each target in `words`.
    """

    sources: Tensor
    targets: Tensor
    words: Tensor
    target_in_class: Tensor

    @property
    def n_pairs(self) -> int:
        return len(self.sources)

    @property
    def chance(self) -> float:
        """The share of pairs that a random choice among the words of the relation gets right."""
        return 1 / len(self.words)


def word_token(model: HeadModel, word: str, after_space: bool) -> int | None:
    """Return the token of a word, None where it is no single token."""
    try:
        token = token_id(model, f" {word}" if after_space else word, 0)
    except InputError:
        return None
    unknown = model.tokenizer.unk_token_id
    return None if token == unknown else token


def pair_tokens(model: HeadModel, pairs: Sequence[WordPair]) -> list[tuple[int, int]]:
    """Return the pairs whose words are single tokens, as tokens: all written after a space, or all
    without one, whichever gives more pairs."""
    best: list[tuple[int, int]] = []
    for after_space in (True, False):
        tokens = []
        for source, target in pairs:
            source_token = word_token(model, source, after_space)
            target_token = word_token(model, target, after_space)
            if source_token is None or target_token is None or source_token == target_token:
                continue
            tokens.append((source_token, target_token))
        if len(tokens) > len(best):
            best = tokens
    return best


def relations_in_tokens(
    tokens_by_relation: Mapping[str, Sequence[tuple[int, int]]],
) -> tuple[list[int], dict[str, TokenRelation]]:
    """Return all tokens of these relations, each once, and the relations as places in that list."""
    all_tokens: list[int] = []
    for pairs in tokens_by_relation.values():
        for pair in pairs:
            for token in pair:
                if token not in all_tokens:
                    all_tokens.append(token)
    place = {token: number for number, token in enumerate(all_tokens)}
    relations = {}
    for name, pairs in tokens_by_relation.items():
        sources = [place[source] for source, _ in pairs]
        targets = [place[target] for _, target in pairs]
        words = sorted({*sources, *targets})
        relations[name] = TokenRelation(
            sources=torch.tensor(sources),
            targets=torch.tensor(targets),
            words=torch.tensor(words),
            target_in_class=torch.tensor([words.index(target) for target in targets]),
        )
    return all_tokens, relations


def word_vectors(
    model: HeadModel, structure: Structure, tokens: Sequence[int]
) -> dict[str, Tensor]:
    """Return what stands for each token, `[token, width]`: its embedding (`bare`), and the residual
    stream after the first MLP (`after_mlp`), without what the heads of the first layer write.

    A position that is added to embeddings is taken off again."""
    table = model.module.get_input_embeddings()
    embedding = weight_in(table, "weight", table.weight).cpu().float()[list(tokens)]
    projection = structure.blocks[0].projection

    def silence(module: object, args: object, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    before = []
    after = []
    handle = projection.register_forward_hook(only_in_this_thread(silence))
    try:
        for start in range(0, len(tokens), WORDS_AT_A_TIME):
            ids = torch.tensor(tokens[start : start + WORDS_AT_A_TIME])
            hidden = model.trace(ids[:, None].repeat(1, COPIES), {"hidden"}).hidden
            assert hidden is not None
            # The heads write nothing, so that the copies do not differ except for their position;
            # the last one: in many models the first position is unlike all others.
            before.append(hidden[:, 0, -1].float().cpu())
            after.append(hidden[:, 1, -1].float().cpu())
    finally:
        handle.remove()
    entered = torch.cat(before)
    after_mlp = torch.cat(after)
    position = entered - embedding
    is_same_for_all = bool((position - position[:1]).abs().max() <= 1e-4 * entered.abs().max())
    if is_same_for_all:
        after_mlp = after_mlp - position[:1]
    return {"after_mlp": after_mlp, "bare": embedding}


@dataclass(frozen=True, slots=True, eq=False)
class LayerRanks:
    """How many pairs of each relation the heads of a layer rank first.

    Attributes
    ----------
    right
        By relation, `[head]`.
    turned
        By relation, `[draw, head]`: the same for circuits turned at random.
    among_all
        By relation, `[head]`: pairs whose target ranks first among the words of all relations.
    """

    right: dict[str, np.ndarray]
    turned: dict[str, np.ndarray]
    among_all: dict[str, np.ndarray]


def random_turns(draws: int, size: int, seed: int) -> Tensor:
    """Return random rotations (and reflections), `[draw, size, size]`, evenly distributed."""
    generator = torch.Generator().manual_seed(seed)
    matrices = torch.randn(draws, size, size, generator=generator)
    orthogonal, triangular = torch.linalg.qr(matrices)
    # Without the signs, the distribution would depend on how QR is computed.
    signs = triangular.diagonal(dim1=-2, dim2=-1).sign()
    turns: Tensor = orthogonal * signs[:, None]
    return turns


def rank_targets(
    weights: LayerWeights,
    vectors: Tensor,
    unembedding: Tensor,
    relations: Mapping[str, TokenRelation],
    turns: Tensor,
) -> LayerRanks:
    """Return how often the circuits of a layer's heads rank a target first within its class.

    Parameters
    ----------
    weights : LayerWeights
        Of the layer.
    vectors : Tensor
        What stands for each token, `[token, width]`.
    unembedding : Tensor
        What the logit of each token reads, `[token, width]`.
    relations : mapping
        By name, as places among the tokens.
    turns : Tensor
        From `random_turns`: put between what a head reads and what it writes.
    """
    read = vectors.to(weights.value) @ weights.value  # head, token, d
    written = unembedding.to(weights.value) @ weights.written().transpose(1, 2)  # head, token, d
    all_scores = read @ written.transpose(1, 2)  # head, source, token
    right = {}
    turned = {}
    among_all = {}
    for name, relation in relations.items():
        first_of_all = all_scores[:, relation.sources].argmax(-1)
        among_all[name] = _count(first_of_all == relation.targets.to(first_of_all))
        sources = read[:, relation.sources]
        candidates = written[:, relation.words].transpose(1, 2)
        target = relation.target_in_class.to(sources.device)
        right[name] = _count((sources @ candidates).argmax(-1) == target)
        counts = []
        for turn in turns.to(sources):
            counts.append(_count((sources @ turn @ candidates).argmax(-1) == target))
        turned[name] = np.stack(counts)
    return LayerRanks(right, turned, among_all)


def _count(is_right: Tensor) -> np.ndarray:
    counts: np.ndarray = is_right.sum(-1).cpu().numpy()
    return counts


def surprise(right: np.ndarray, n_pairs: int, chance: float) -> np.ndarray:
    """Return how unlikely so many right pairs are for random choices, as −log10 of the binomial
    tail: a scale on which relations with few and many pairs can be compared."""
    tail = scipy_stats.binom.logsf(np.arange(n_pairs + 1) - 1, n_pairs, chance)
    by_count: np.ndarray = -tail / np.log(10)
    values: np.ndarray = by_count[right]
    return values
