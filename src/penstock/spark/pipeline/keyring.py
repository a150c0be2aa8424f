"""Check of a pipeline's keyring before Spark starts."""

from __future__ import annotations

from penstock.security.data.file_ring import KeyPlace, ring_at
from penstock.security.data.key_ring import KeyRingUnusable
from penstock.spark.pipeline.document import read
from penstock.spark.pipeline.problems import PipelineInvalid
from penstock.spark.pipeline.spec import PipelineSpec, Source, Step


def keys_of(spec: PipelineSpec) -> KeyPlace | None:
    """Return the location of a pipeline's keys; None if it names none."""
    if spec.run.keys is None:
        return None
    return KeyPlace(ring=spec.run.keys, master=spec.run.master_key)


def check_keys(spec: PipelineSpec) -> None:
    """Open the keyring, if the pipeline needs it.

    Raises:
        PipelineInvalid: it is missing, readable by others, or its master key does not fit.
    """
    place = keys_of(spec)
    parts: list[Source | Step] = [*spec.sources.values(), *spec.steps.values()]
    if place is None or not any(
        protection.needs_keys for part in parts for protection in part.protections
    ):
        return
    try:
        ring_at(place)
    except KeyRingUnusable as error:
        problem = read(spec.file).problem(("run", "keys"), str(error))
        raise PipelineInvalid((problem,)) from error
