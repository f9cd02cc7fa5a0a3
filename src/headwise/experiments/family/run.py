"""Read or measure the labels of every member of a family, and compare them by relative depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xarray as xr

from headwise.analyses.contract import Analysis, choose_analyses
from headwise.atlas import Atlas
from headwise.atlas.describe import DESCRIBERS
from headwise.core.errors import ParameterError
from headwise.core.failures import UnexpectedError
from headwise.core.options import recorded_options
from headwise.core.store import delete_checkpoints, pack_dataset, unpack_dataset
from headwise.core.workers import UnitResult, Workers, current, raise_failures
from headwise.experiments.comparison.options import (
    FAMILY_ANALYSES,
    MOST_MODELS,
    ComparisonOptions,
)
from headwise.experiments.family.members import (
    Member,
    MemberLike,
    distinct_names,
    is_atlas,
    opened,
    read_atlas,
)
from headwise.experiments.family.result import MemberLabels, family_datasets, labels_of_member
from headwise.models import HeadModel
from headwise.run.encoded import EncodedCorpus
from headwise.run.job import Job, software_versions
from headwise.run.options import RunOptions
from headwise.run.provenance import describe
from headwise.run.runner import Run, RunCallbacks
from headwise.run.source import Source
from headwise.text import Corpus, Example, Spec, annotate, open_corpus

Groups = dict[str, xr.Dataset]
MOST_BINS = 6  # of relative depth by default; more would leave few heads in each


def family_in_job(
    job: Job,
    sources: Sequence[MemberLike],
    corpus: Corpus | Spec | str | Path | None,
    options: ComparisonOptions,
) -> Atlas:
    """Compare 2 to 8 models of any shape by label and relative depth; see `headwise.compare`.

    Parameters
    ----------
    job : Job
        Keeps a checkpoint of each model that is measured.
    sources : sequence
        Models, and atlases, of which nothing is computed again.
    corpus : Corpus, Spec, str or Path, optional
        The inputs of the models; default: built-in corpus, as running text if one is a decoder.
    options : ComparisonOptions
        How to compare.
    """
    if not 2 <= len(sources) <= MOST_MODELS:
        raise ParameterError(
            f"A comparison by depth takes 2 to {MOST_MODELS} models; {len(sources)} were named."
        )
    if options.probing is not None:
        raise ParameterError(
            "Probing compares models head by head, which needs models of one shape; leave it out "
            "of a comparison by depth.",
            option="probing",
        )
    names_of_analyses = FAMILY_ANALYSES if options.analyses is None else options.analyses
    analyses = []
    for analysis in choose_analyses(names_of_analyses, variant=options.variant):
        analyses.append(analysis.seeded(options.seed))
    members, inputs = _open_members(job, sources, corpus, options)
    identity: dict[str, Any] = {
        # `bins` is not among the recorded options: comparisons head by head have none.
        "family": {**recorded_options(options), "bins": options.bins},
        "models": [{"called": member.name, **member.identity} for member in members],
        "corpus": inputs.about,
        "analyses": {analysis.name: describe(analysis.parameters) for analysis in analyses},
    }
    job.begin(identity)
    groups_by_member = _groups_of(job, members, inputs, analyses, options)
    # A group that one model lacks is left out for all: the model could not have its labels.
    shared = shared_groups(groups_by_member, [member.name for member in members])
    left_out: dict[str, dict[str, str]] = {}
    labels: list[MemberLabels] = []
    for member, groups in zip(members, groups_by_member, strict=True):
        for name in groups:
            if name not in shared:
                left_out.setdefault(name, {})[member.name] = "not all models have it"
        labels.append(labels_of_member(member.name, {name: groups[name] for name in shared}))
    bins = _number_of_bins(options.bins, labels)
    corpora = [_corpus_of(member, inputs) for member in members]
    datasets = family_datasets(labels, corpora, bins, options)
    datasets["family"].attrs["groups"] = ", ".join(shared)
    provenance = {
        **software_versions(),
        "model": {"name": " and ".join(member.name for member in members)},
        "models": identity["models"],
        "corpus": inputs.about or _shared_corpus(members),
        "analyses": identity["analyses"],
        "groups": list(shared),
        "left_out": left_out,
        "family": identity["family"],
    }
    return Atlas(datasets, provenance)


def _number_of_bins(bins: int | None, labels: Sequence[MemberLabels]) -> int:
    """Return into how many parts of equal relative depth the models are divided: each part holds a
    layer of each model."""
    shallowest = min(member_labels.layers for member_labels in labels)
    if bins is None:
        return min(MOST_BINS, shallowest)
    if bins > shallowest:
        raise ParameterError(
            f"`bins` is {bins}, but the shallowest model has {shallowest} layers; choose at most "
            "as many bins.",
            option="bins",
        )
    return bins


@dataclass(frozen=True, slots=True)
class FamilyInputs:
    """What all models that are measured read: the same examples, cut to the same length."""

    examples: tuple[Example, ...] = ()
    corpus_name: str = ""
    max_length: int = 0
    about: dict[str, Any] = field(default_factory=dict)


def _open_members(
    job: Job,
    sources: Sequence[MemberLike],
    corpus: Corpus | Spec | str | Path | None,
    options: ComparisonOptions,
) -> tuple[list[Member], FamilyInputs]:
    """Return the members with their identities, and what the models among them read.

    Models are opened one after the other: eight at once may not fit into memory."""
    members: list[Member] = []
    lengths = []
    has_decoder = False
    tokenizer = None
    for number, source in enumerate(sources):
        job.progress("opening", number, len(sources))
        if isinstance(source, Atlas) or is_atlas(source):
            members.append(_atlas_member(source))
            continue
        with opened(source, options) as model:
            members.append(Member(model.name, source, model.identity()))
            lengths.append(model.encoder.max_length)
            has_decoder = has_decoder or model.causal
            tokenizer = tokenizer or model.tokenizer
    job.progress("opening", len(sources), len(sources))
    names = distinct_names([member.name for member in members], options.names)
    members = [replace(member, name=name) for member, name in zip(members, names, strict=True)]
    if not lengths:
        return members, FamilyInputs()
    text = open_corpus(
        corpus, tokenizer=tokenizer, limit=options.limit, seed=options.seed, prose=has_decoder
    ).alone()
    if options.parser is not None:
        text = annotate(text, options.parser)
    examples = tuple(text)
    about_corpus = {
        "name": text.name,
        "fingerprint": Corpus.from_examples(examples, text.name).fingerprint(),
        "examples": len(examples),
        "max_length": min(lengths),
    }
    return members, FamilyInputs(examples, text.name, min(lengths), about_corpus)


def _atlas_member(source: Atlas | str | Path) -> Member:
    """Return the model of an atlas, named as the atlas says, or like the file where it does not."""
    atlas = read_atlas(source)
    about_model = dict(atlas.provenance.get("model", {}))
    name = about_model.get("name")
    path = None if isinstance(source, Atlas) else source
    if not name:
        name = "atlas" if path is None else Path(path).stem
    return Member(str(name), path, {**about_model, "atlas": atlas.digest}, atlas)


def _corpus_of(member: Member, inputs: FamilyInputs) -> str:
    """Return what a member read, in words; the same words for the same examples."""
    about = inputs.about
    if member.atlas is not None:
        about = member.atlas.provenance.get("corpus", {})
    digest = str(about.get("fingerprint", "?"))[:8]
    return f"{about.get('name', '?')}, {about.get('examples', '?')} examples ({digest})"


def _shared_corpus(members: Sequence[Member]) -> dict[str, Any]:
    """Return what all atlases read, where it is the same."""
    corpora = []
    for member in members:
        if member.atlas is not None:
            corpora.append(member.atlas.provenance.get("corpus", {}))
    if all(corpus == corpora[0] for corpus in corpora):
        return dict(corpora[0])
    return {"name": "different texts"}


def _groups_of(
    job: Job,
    members: Sequence[Member],
    inputs: FamilyInputs,
    analyses: Sequence[Analysis],
    options: ComparisonOptions,
) -> list[Groups]:
    """Return the groups with labels of every member: those of its atlas, or measured now."""
    store = job.started_store
    is_local = type(current()) is Workers
    measure_member = MeasureMember(
        members=members,
        inputs=inputs,
        analyses=tuple(analyses),
        options=options,
        # Runs in this process have checkpoints of their own; on a worker a model is one unit.
        folder=store.folder if is_local else None,
    )
    units = []
    for number, member in enumerate(members):
        if member.atlas is None:
            units.append((_unit_name(number), number))
    measured: dict[int, Groups] = {}
    job.progress("models", 0, len(units))
    checkpoints = raise_failures(job.units(measure_member, units))
    for (name, number), checkpoint in zip(units, checkpoints, strict=True):
        measured[number] = unpack_groups(checkpoint.arrays, checkpoint.facts)
        delete_checkpoints(_inner_folder(store.folder, name))
        job.progress("models", len(measured), len(units))
    groups = []
    for number, member in enumerate(members):
        if member.atlas is None:
            groups.append(measured[number])
        else:
            groups.append(label_groups(member.atlas))
    return groups


def _unit_name(number: int) -> str:
    return f"model-{number:04d}"


def _inner_folder(folder: Path, name: str) -> Path:
    """Return where the run of one model has its checkpoints while it is measured."""
    return folder / f"run-{name}.part"


def label_groups(atlas: Atlas) -> Groups:
    """Return the groups of an atlas that labels come from, as far as they are complete."""
    groups = {}
    for name, (_, needed) in DESCRIBERS.items():
        if name in atlas and all(variable in atlas[name] for variable in needed):
            groups[name] = atlas[name]
    return groups


def shared_groups(groups: Sequence[Groups], names: Sequence[str]) -> list[str]:
    """Return the groups that all members have: with others, one model could have labels that
    another was never examined for."""
    shared = [name for name in groups[0] if all(name in other for other in groups)]
    if shared:
        return shared
    of_each = []
    for name, own_groups in zip(names, groups, strict=True):
        of_each.append(f"{name}: {', '.join(own_groups) or 'none'}")
    raise ParameterError(
        f"No analysis that gives labels is there for all models ({'; '.join(of_each)}); make "
        "atlases with the same analyses, at least `surface`."
    )


@dataclass(slots=True, eq=False)
class MeasureMember:
    """Runs the analyses on one model of a family; a unit of work.

    `folder` is where the runs of single models have checkpoints; None where nothing is kept."""

    members: Sequence[Member]
    inputs: FamilyInputs
    analyses: tuple[Analysis, ...]
    options: ComparisonOptions
    folder: Path | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Atlases stay here: a worker measures models alone.
        without_atlases = []
        for member in self.members:
            without_atlases.append(Member(member.name, member.source, member.identity))
        return MeasureMember, (without_atlases, self.inputs, self.analyses, self.options)

    def __call__(self, number: int) -> UnitResult:
        member = self.members[number]
        with opened(member.source, self.options) as model:
            limited = model.limited(self.inputs.max_length)
            atlas = self._run(limited, _unit_name(number))
        return pack_groups(label_groups(atlas))

    def _run(self, model: HeadModel, name: str) -> Atlas:
        folder = None if self.folder is None else _inner_folder(self.folder, name)
        corpus = Corpus.from_examples(self.inputs.examples, self.inputs.corpus_name)
        source = Source(model, rows=EncodedCorpus(corpus, model.encoder))
        run_options = RunOptions(seed=self.options.seed, overwrite=True)
        with Run(source, self.analyses, folder, run_options, RunCallbacks(note=_ignore)) as run:
            atlas = run.atlas()
            if run.failures:
                raise UnexpectedError(*run.failures.values())
        return atlas


def _ignore(sentence: str) -> None:
    """Notes on a single model of many (a precision, a missing pooler) are no news of a family."""


def pack_groups(groups: Groups) -> UnitResult:
    """Return the groups of one model as arrays and JSON, for a checkpoint."""
    arrays = {}
    facts = {}
    for name, dataset in groups.items():
        own_arrays, facts[name] = pack_dataset(dataset)
        for key, array in own_arrays.items():
            arrays[f"{name}/{key}"] = array
    return arrays, {"groups": facts, "order": list(groups)}


def unpack_groups(arrays: Any, facts: Any) -> Groups:
    """Return the groups that `pack_groups` took apart."""
    groups = {}
    for name in facts["order"]:
        own_arrays = {}
        for key, array in arrays.items():
            if key.startswith(f"{name}/"):
                own_arrays[key.removeprefix(f"{name}/")] = array
        groups[name] = unpack_dataset(own_arrays, facts["groups"][name])
    return groups
