"""The ledger as JSON, for other projects to use as test vectors; docs/golden.schema.json is its schema."""

import json
from typing import Any

from headcheck.golden.judging import judged
from headcheck.golden.ledger import DOCUMENTS, VERDICTS, Block, Claim, Probe, Run, ledger
from headcheck.golden.stated import digits, numbers

SCHEMA_VERSION = 1
PLACES = 30


def golden_json() -> str:
    """Everything, in the order of the documents."""
    holds = ledger()
    return _text(
        {
            "schema_version": SCHEMA_VERSION,
            "documents": [
                {"id": each.id, "title": each.title, "author": each.author, "sha256": each.sha256}
                for each in DOCUMENTS.values()
            ],
            "claims": [_claim(claim) for claim in holds.claims.values()],
            "blocks": [_block(block) for block in holds.blocks.values()],
            "probes": [_probe(probe) for probe in holds.probes.values()],
        }
    )


def _text(data: Any) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _claim(claim: Claim) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": claim.id,
        "document": claim.document,
        "line": claim.line,
        "place": claim.place,
        "what": claim.what,
        "verdict": judged(claim.id).verdict,
    }
    if claim.stated is not None and claim.derived is not None:
        found["kind"] = claim.stated.kind
        found["stated"] = {
            "text": claim.stated.text,
            "shape": list(claim.stated.shape),
            "entries": [digits(each, PLACES) for each in claim.stated.entries],
            "half_units": [digits(each, PLACES) for each in claim.stated.half_units],
        }
        axes, entries = numbers(claim.derived.exact())
        found["exact"] = {"shape": list(axes), "entries": [digits(each, PLACES) for each in entries]}
        found["right"] = judged(claim.id).right
        found["inputs"] = dict(claim.derived.inputs)
    texts = {"formula": claim.formula, "slip": claim.slip, "reason": claim.reason}
    texts["one_way"] = claim.derived.one_way if claim.derived else ""
    return found | {name: text for name, text in texts.items() if text}


def _block(block: Block) -> dict[str, Any]:
    return {
        "id": block.id,
        "document": block.document,
        "lines": [block.first, block.last],
        "what": block.what,
        "indentation": block.levels.replace(" ", ""),
        "needs": list(block.needs),
        "alone": _run(block.alone),
        "in_order": _run(block.in_order),
    }


def _run(run: Run) -> dict[str, Any]:
    return {"error": run.error, "warnings": list(run.warnings), "prints": list(run.prints)}


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "id": probe.id,
        "document": probe.document,
        "line": probe.line,
        "kind": probe.kind,
        "what": probe.what,
        "blocks": [block.id for block in ledger().blocks_named(probe)],
        "setting": probe.setting,
        "probe": probe.probe,
        "prints": probe.prints,
        "fault": probe.fault,
        "why_no_fault": probe.why_no_fault,
    }


# The schema


def golden_schema() -> str:
    """JSON Schema, draft 2020-12, of what `golden_json` writes."""
    text, texts = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
    whole = {"type": "integer"}
    value = {"shape": {"type": "array", "items": whole}, "entries": texts}
    document = {"enum": list(DOCUMENTS)}
    run = _object({"error": text, "warnings": texts, "prints": texts})
    claim = {
        "id": {"type": "string", "pattern": r"^\d{3}/[a-z0-9-]+/[a-z0-9-]+$"},
        "document": document,
        "line": whole,
        "place": text,
        "what": text,
        "verdict": {"enum": list(VERDICTS)},
    }
    more = {
        "kind": {"enum": ["number", "shape", "statement"]},
        "stated": _object({"text": text, **value, "half_units": texts}),
        "exact": _object(value),
        "right": text,
        "inputs": {"type": "object"},
        "formula": text,
        "slip": text,
        "reason": text,
        "one_way": text,
    }
    block = {
        **{name: claim[name] for name in ("id", "document", "what")},
        "lines": {"type": "array", "items": whole},
        "indentation": text,
        "needs": texts,
        "alone": run,
        "in_order": run,
    }
    probe = {
        **{name: claim[name] for name in ("id", "document", "line", "what")},
        "kind": {"enum": ["latent fault", "behaviour"]},
        **dict.fromkeys(("setting", "probe", "prints", "fault", "why_no_fault"), text),
        "blocks": texts,
    }
    ledger_of = {
        "schema_version": {"enum": [SCHEMA_VERSION]},
        "documents": _array(_object(dict.fromkeys(("id", "title", "author", "sha256"), text))),
        "claims": _array(_object(claim, more)),
        "blocks": _array(_object(block)),
        "probes": _array(_object(probe)),
    }
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The golden ledger of headcheck",
        "description": "Entries are decimal texts with up to 30 significant digits, or true and false. "
        "A stated entry stands for every number within its half unit of it.",
    }
    return _text(head | _object(ledger_of))


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}
