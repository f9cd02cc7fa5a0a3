"""Function vectors by plain hooks, without headwise: which first token a prompt needs.

    python benchmarks/function_vectors.py MODEL [--task antonym] [--starts none bos newline]

For one task (Todd et al. 2023): the mean output of each head at the end of prompts with five
examples, its effect in prompts whose examples are shuffled, and the accuracy without examples when
the sum of what the best ten heads write is added to the residual stream before a layer. Prompts
begin with nothing, with the tokenizer's beginning-of-sequence token, or with a line break. MODEL is
a Llama; of headwise only the list of word pairs is used."""

from __future__ import annotations

import argparse
import copy
import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from headwise.text.word_pairs import RELATIONS

SHOTS = 5
PROMPTS = 8
BEST = 10
LAYERS = (4, 7, 10, 13, 16, 19, 22, 25)
Pair = tuple[str, str]
Prompt = tuple[Tensor, int]  # its tokens, and the first token of the answer


class PlainVectors:
    """One task of one model, with prompts that begin in one way."""

    def __init__(self, folder: str, task: str, start: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.layers = self.model.model.layers
        self.heads = self.model.config.num_attention_heads
        self.d_head = self.layers[0].self_attn.o_proj.in_features // self.heads
        self.start = {"none": "", "bos": self.tokenizer.bos_token, "newline": "\n"}[start]
        self.random = random.Random(0)
        self.pairs = list(RELATIONS[task])
        self.random.shuffle(self.pairs)

    def prompt(self, shots: list[Pair], pair: Pair) -> Prompt:
        examples = "".join(f"{source}: {target}\n" for source, target in shots)
        text = f"{self.start}{examples}{pair[0]}:"
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        with_answer = self.tokenizer(f"{text} {pair[1]}", add_special_tokens=False)["input_ids"]
        assert with_answer[: len(ids)] == ids
        return torch.tensor([ids]), with_answer[len(ids)]

    def shots(self, pair: Pair) -> list[Pair]:
        others = [other for other in self.pairs if other[0] != pair[0] and other[1] != pair[1]]
        return self.random.sample(others, SHOTS)

    def answer_of(self, prompt: Prompt) -> tuple[float, bool]:
        """Return the probability of the answer, and whether it is the likeliest token."""
        ids, answer = prompt
        probabilities = self.model(ids).logits[0, -1].softmax(-1)
        return float(probabilities[answer]), int(probabilities.argmax()) == answer

    def mean_outputs(self, pairs: list[Pair]) -> Tensor:
        """Return the mean input of each output projection at the last token, `[layer, width]`."""
        total = torch.zeros(len(self.layers), self.heads * self.d_head)

        def hook_of(layer: int) -> Callable[..., None]:
            def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
                total[layer] += args[0][0, -1]

            return keep

        handles = []
        for number, layer in enumerate(self.layers):
            projection = layer.self_attn.o_proj
            handles.append(projection.register_forward_pre_hook(hook_of(number)))
        for pair in pairs:
            self.model(self.prompt(self.shots(pair), pair)[0])
        for handle in handles:
            handle.remove()
        return total / len(pairs)

    def gains(self, prompt: Prompt, outputs: Tensor) -> np.ndarray:
        """Return what the answer gains when a head's output at the last token is replaced."""
        ids, answer = prompt
        before, _ = self.answer_of(prompt)
        cache = self.model(ids[:, :-1], use_cache=True).past_key_values
        cache.batch_repeat_interleave(self.heads)
        gains = np.zeros((len(self.layers), self.heads))
        for number, layer in enumerate(self.layers):

            def replace(
                module: nn.Module, args: tuple[Tensor, ...], number: int = number
            ) -> tuple[Tensor]:
                changed = args[0].clone()
                for head in range(self.heads):  # in row h head h
                    columns = slice(head * self.d_head, (head + 1) * self.d_head)
                    changed[head, -1, columns] = outputs[number, columns]
                return (changed,)

            handle = layer.self_attn.o_proj.register_forward_pre_hook(replace)
            last = ids[:, -1:].repeat(self.heads, 1)
            logits = self.model(last, past_key_values=copy.deepcopy(cache)).logits[:, -1]
            handle.remove()
            gains[number] = logits.softmax(-1)[:, answer].numpy() - before
        return gains

    def vector(self, outputs: Tensor, heads: list[tuple[int, int]]) -> Tensor:
        written = []
        for layer, head in heads:
            columns = slice(head * self.d_head, (head + 1) * self.d_head)
            weight = self.layers[layer].self_attn.o_proj.weight
            written.append(weight[:, columns] @ outputs[layer, columns])
        return torch.stack(written).sum(0)

    def judge(
        self, prompts: list[Prompt], vector: Tensor | None = None, layer: int = 0
    ) -> tuple[float, float]:
        """Return accuracy and mean log-probability, with a vector before a layer."""

        def add(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            changed = args[0].clone()
            if vector is not None:
                changed[:, -1] += vector
            return (changed, *args[1:])

        handle = self.layers[layer].register_forward_pre_hook(add)
        answers = [self.answer_of(prompt) for prompt in prompts]
        handle.remove()
        logs = [np.log(probability) for probability, _ in answers]
        return float(np.mean([right for _, right in answers])), float(np.mean(logs))


@torch.no_grad()
def report(folder: str, task: str, start: str) -> None:
    """Print what vectors do with prompts that begin in one way."""
    plain = PlainVectors(folder, task, start)
    outputs = plain.mean_outputs(plain.pairs[:PROMPTS])
    accuracy = []
    gains = []
    for pair in plain.pairs[PROMPTS : 2 * PROMPTS]:
        shots = plain.shots(pair)
        accuracy.append(plain.answer_of(plain.prompt(shots, pair))[1])
        shuffled = []
        for place, (source, _) in enumerate(shots):
            shuffled.append((source, shots[(place + 1) % SHOTS][1]))
        gains.append(plain.gains(plain.prompt(shuffled, pair), outputs))
    gain = np.mean(gains, axis=0)
    best = []
    for place in np.argsort(-gain.ravel())[:BEST]:
        best.append((int(place) // plain.heads, int(place) % plain.heads))
    names = [f"L{layer}H{head} {gain[layer, head]:+.3f}" for layer, head in best[:4]]
    bare = [plain.prompt([], pair) for pair in plain.pairs[2 * PROMPTS :]]
    print(f"{task}, prompts begin with {start}: {np.mean(accuracy):.2f} right; {', '.join(names)}")
    right, log = plain.judge(bare)
    print(f"  {len(bare)} queries without examples: {right:.2f} right, log-probability {log:.1f}")
    vector = plain.vector(outputs, best)
    for layer in LAYERS:
        right, log = plain.judge(bare, vector, layer)
        print(f"  with the vector before layer {layer}: {right:.2f}, {log:.1f}", flush=True)
    everywhere = [
        (layer, head) for layer in range(len(plain.layers)) for head in range(plain.heads)
    ]
    drawn = plain.random.sample(everywhere, BEST)
    right, log = plain.judge(bare, plain.vector(outputs, drawn), LAYERS[3])
    print(f"  random heads before layer {LAYERS[3]}: {right:.2f}, {log:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--task", default="antonym")
    parser.add_argument("--starts", nargs="+", default=["none", "bos", "newline"])
    options = parser.parse_args()
    for start in options.starts:
        report(options.model, options.task, start)


if __name__ == "__main__":
    main()
