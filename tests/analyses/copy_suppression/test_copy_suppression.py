"""Copy suppression: the planted head is found and not those that resemble it, every number is that
of a slow computation, and random weights suppress nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from headwise import make_atlas
from headwise.analyses.contract import make_analysis
from headwise.analyses.copy_suppression.rows import NAMES, ChosenRows, suppression_means
from headwise.core.errors import ParameterError
from headwise.models import HeadModel
from headwise.models.direct import Recorded
from headwise.models.structure import find_structure
from headwise.plots import figures_for
from headwise.testing import RandomRuns, check_random_models, planted_decoder, random_calls
from headwise.testing.decoder import SUPPRESSION_SCALE
from headwise.text import Corpus
from headwise.text.example import Example

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from tiny_models import SUPPORTED, build, ids_batch


def repeated_texts(count: int, words: int, length: int = 6) -> Corpus:
    """Random words, written twice: in the second half an induction head predicts every one."""
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(count):
        drawn = [f"word{number}" for number in rng.permutation(words)[:length]]
        examples.append(Example(text=" ".join(drawn + drawn)))
    return Corpus.from_examples(examples, "repeated words")


@pytest.fixture(scope="module")
def decoder():
    return planted_decoder(words=20, max_length=16, suppressing=True)


@pytest.fixture(scope="module")
def atlas(decoder):
    with HeadModel.open(decoder.model, tokenizer=decoder.tokenizer) as model:
        return make_atlas(model, repeated_texts(12, 20), ["copy_suppression", "surface"], full=True)


def test_the_planted_head_is_found_and_no_other(decoder, atlas) -> None:
    dataset = atlas["copy_suppression"]
    significant = make_analysis("copy_suppression").significant_heads(dataset)
    expected = np.zeros((3, 3), bool)
    expected[decoder.where("suppression")] = True
    assert np.array_equal(significant.values, expected)
    place = decoder.where("suppression")
    # It takes off the centred code of the token, without the dimension of the opening token.
    share = 1 / len(decoder.vocabulary)
    lowered = SUPPRESSION_SCALE * decoder.loudness * (1 - share - share**2) / (1 - share)
    assert dataset["suppression_effect"].values[place] == pytest.approx(lowered, rel=1e-4)
    # In the control row it takes nothing or another token off, which raises all others a little.
    highest = lowered * (1 + 2 * share)
    assert lowered < float(dataset["suppression"].values[place]) < highest
    assert dataset["attention"].values[place] == pytest.approx(1, abs=1e-4)
    # Of twelve words, the six of the second half follow an earlier occurrence; the last one has
    # nothing after it, and its prediction is the word after its first occurrence all the same.
    assert int(dataset["rows"][2]) == 12 * 6


def test_heads_that_resemble_it_fail_one_of_the_tests(decoder, atlas) -> None:
    dataset = atlas["copy_suppression"]
    # It lowers what it attends to, whether that is predicted or not.
    assert float(dataset["attention_excess"].values[decoder.where("lowering")]) <= 0
    # It lowers any prediction: those that stand nowhere in the text, too.
    doubting = decoder.where("doubting")
    assert float(dataset["suppression_spreads"].values[doubting]) > 1
    assert float(dataset["absent_spreads"].values[doubting]) == pytest.approx(0, abs=0.1)


def test_label_card_and_figures(decoder, atlas) -> None:
    table = atlas.describe().set_index("name")
    assert table.loc["L2H0", "does"] == "copy suppression"
    assert "logits off a token of the text that earlier layers predict" in table.loc["L2H0", "why"]
    assert "copy suppression 6." in table.loc["L2H0", "finds"]
    assert "copy suppression" not in set(table["does"].drop("L2H0"))
    lines = make_analysis("copy_suppression").summary(atlas["copy_suppression"])
    assert "1 heads lower the logit of such a token" in lines[-1]
    assert "L2H0" in lines[-1]
    for figure in figures_for("copy_suppression"):
        figure.draw(atlas["copy_suppression"])


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_every_number_is_that_of_a_slow_computation(name: str) -> None:
    """By the model's own final norm and output matrix, and by what each head adds to the logits of
    the whole vocabulary, row by row."""
    config, _, arguments = SUPPORTED[name]
    causal = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "gemma2": "Gemma2ForCausalLM"}
    module = build(config, causal[name], arguments)
    with torch.no_grad():
        for parameter in module.parameters():  # norms and biases that are not one and zero
            if parameter.ndim == 1:
                parameter.add_(torch.rand_like(parameter) * 0.5)
    generator = torch.Generator().manual_seed(3)
    # An output matrix of its own, which predicts these few tokens.
    vocabulary = module.lm_head.weight.shape[0]
    width = module.lm_head.weight.shape[1]
    module.lm_head = torch.nn.Linear(width, vocabulary, bias=False)
    with torch.no_grad():
        module.lm_head.weight.mul_(0.01)
        module.lm_head.weight[5:12] = torch.randn(7, width, generator=generator)
    with HeadModel.open(module) as model:
        structure = find_structure(model)
        batch = ids_batch()
        # Few different tokens, so that predictions stand in the text.
        batch.ids.copy_(torch.randint(5, 12, batch.ids.shape, generator=generator))
        chosen = ChosenRows(batch, 9)
        recorded = Recorded(model, structure, batch, chosen.on_rows, keep_streams=True)
        means, n_copied = suppression_means(recorded, chosen, recorded.logit_covariance())
        trace = model.trace(batch, {"attention", "hidden"})
        norm = module.transformer.ln_f if name == "gpt2" else module.model.norm
        with torch.no_grad():
            lens = module.lm_head(norm(trace.hidden)).argmax(-1)  # [example, layer + 1, token]
        added = []
        for token in range(vocabulary):
            added.append(recorded.direct(torch.full_like(batch.ids, token)).heads)
        contribution = torch.stack(added, -1).double()  # [layer, example, row, head, token]

    n_layers, n_examples, _, n_heads, _ = contribution.shape
    assert int(n_copied.sum()) > 5
    for layer, example, head in np.ndindex(n_layers, n_examples, n_heads):
        ids = batch.ids[example].tolist()
        length = int(batch.attention_mask[example].sum())
        rows = chosen.rows[example][chosen.is_row[example]].tolist()
        special = batch.special[example].tolist()
        predictions = {row: int(lens[example, layer, row]) for row in rows}

        def occurrences(token: int, row: int, ids=ids, special=special) -> list[int]:
            return [key for key in range(1, row) if ids[key] == token and not special[key]]

        def lowered(token: int, row: int, at=(layer, example), head=head) -> tuple[float, float]:
            logits = contribution[at][row, head]
            return float(-logits[token]), float(logits.std(correction=0))

        values: dict[str, list[float]] = {measure: [] for measure in NAMES}
        absent = []
        on_copied = []
        variances = []
        for row in rows:
            token = predictions[row]
            if token == ids[row]:
                continue
            here, spread = lowered(token, row)
            if not occurrences(token, row):
                absent.append(here)
                continue
            controls = []
            for other in rows:
                differs = predictions[other] != token and ids[other] != token
                if differs and occurrences(token, other):
                    controls.append((abs(other - row), other))
            if not controls:
                continue
            control = min(controls)[1]
            there, _ = lowered(token, control)
            weights = trace.attention[example, layer, head]
            attention = float(weights[row, occurrences(token, row)].sum())
            in_control = float(weights[control, occurrences(token, control)].sum())
            values["suppression"].append(here - there)
            values["suppression_effect"].append(here)
            values["attention"].append(attention)
            values["attention_excess"].append(attention - in_control)
            on_copied.append(here)
            variances.append(spread**2)
        unit = np.sqrt(np.mean(variances)) if variances else np.nan
        if on_copied:
            values["suppression_spreads"].append(np.mean(values["suppression"]) / unit)
        if on_copied and absent:
            values["absent_spreads"].append((np.mean(on_copied) - np.mean(absent)) / unit)
        assert len(on_copied) == int(n_copied[example, layer]), (layer, example, length)
        for measure, numbers in values.items():
            computed = float(means[measure][example, layer, head])
            if numbers:
                assert computed == pytest.approx(np.mean(numbers), rel=2e-3, abs=1e-4), measure
            else:
                assert np.isnan(computed)


@pytest.mark.parametrize("llama", [False, True])
def test_random_weights_suppress_nothing(llama: bool) -> None:
    runs = RandomRuns(seeds=range(2), gains=(1.0, 6.0), causal=True, llama=llama)
    calls = random_calls(["copy_suppression"], runs=runs)
    check_random_models(calls)
    assert len(calls) == 4
    assert calls["significant"].sum() == 0


def test_parameters_are_checked() -> None:
    with pytest.raises(ParameterError, match="`rows`"):
        make_analysis("copy_suppression", {"rows": 1})


def test_rows_are_evenly_spaced_and_within_each_text() -> None:
    batch = ids_batch()
    chosen = ChosenRows(batch, 4)
    lengths = batch.attention_mask.sum(-1)
    for example, length in enumerate(lengths.tolist()):
        rows = chosen.rows[example][chosen.is_row[example]].tolist()
        assert rows[0] == 2
        assert max(rows) < length
        assert len(set(rows)) == len(rows) == min(4, length - 2)


def test_encoders_have_no_predictions_to_suppress() -> None:
    reason = make_analysis("copy_suppression").unsupported_reason
    config = transformers.BertConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    with HeadModel.open(transformers.BertModel(config)) as model:
        from headwise.core.labels import Shape

        shape = Shape(1, 2, 16, 32, model.causal, 64, ("cls",))
        assert reason(shape) == "the model has no language-modelling head"
