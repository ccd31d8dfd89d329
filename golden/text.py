"""The ledger in a terminal: counts, errata, one entry with its derivation."""

import re
from collections import Counter
from pathlib import Path

from headcheck.golden.judging import judged
from headcheck.golden.ledger import DOCUMENTS, VERDICTS, Block, Claim, Probe, Run, ledger
from headcheck.golden.stated import written

SYMBOLS = {
    "cdot": "·",
    "times": "×",
    "sqrt": "√",
    "sum": "Σ",
    "prod": "Π",
    "approx": "≈",
    "ne": "≠",
    "le": "≤",
    "ge": "≥",
    "ll": "≪",
    "gg": "≫",
    "in": "∈",
    "to": "→",
    "infty": "∞",
    "top": "T",
    "quad": "  ",
    "dots": "...",
    "circ": "∘",
    "partial": "∂",
    "alpha": "α",
    "omega": "ω",
    "theta": "θ",
    "sigma": "σ",
    "gamma": "γ",
    "beta": "β",
    "phi": "φ",
    "pi": "π",
    "mu": "μ",
    "delta": "δ",
    "varepsilon": "ε",
}


def counts() -> str:
    """How many claims of each document come to which verdict; the computed verdicts, not the declared."""
    found = Counter((claim.document, judged(claim.id).verdict) for claim in ledger().claims.values())
    rows = [["document", *VERDICTS, "claims"]]
    for document in [*DOCUMENTS, "all"]:
        row = [
            sum(n for (d, v), n in found.items() if v == verdict and document in {d, "all"})
            for verdict in VERDICTS
        ]
        rows.append([document, *map(str, [*row, sum(row)])])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{word:>{width}}" if n else f"{word:<{width}}" for n, (word, width) in enumerate(cells))
        for cells in ([*zip(row, widths, strict=True)] for row in rows)
    ]
    code = f"{len(ledger().blocks)} code blocks and {len(ledger().probes)} probes of their code"
    return "\n".join([*lines, f"and {code}; `headcheck golden ID` shows one"])


def errata() -> str:
    """Each erratum: where, what is stated, what is right, and the slip."""
    found = [claim for claim in ledger().claims.values() if claim.verdict == "erratum"]
    return "\n\n".join([*map(_erratum, found), f"{len(found)} errata"])


def _erratum(claim: Claim) -> str:
    return "\n".join(
        [
            f'document {claim.document}, line {claim.line}, "{claim.place}"  [{claim.id}]',
            f"  {claim.what}",
            f"  stated: {_stated(claim)}",
            f"  right:  {_right(claim)}",
            f"  slip:   {claim.slip}",
        ]
    )


def _stated(claim: Claim) -> str:
    if claim.stated is None:
        return ""
    return "as said" if claim.stated.kind == "statement" else claim.stated.text


def _right(claim: Claim) -> str:
    if claim.stated is not None and claim.stated.kind == "statement":
        return "it does not hold" if claim.verdict == "erratum" else "it holds"
    judgement = judged(claim.id)
    return judgement.right + ("" if judgement.right == judgement.exact else f"  ({judgement.exact})")


def without_way() -> str:
    """The claims whose value is reached in one way, with the reasons, and those that the reference does not reach."""
    derived = {claim.id: claim.derived for claim in ledger().claims.values() if claim.derived is not None}
    alone = [f"  {name}: {each.one_way}" for name, each in derived.items() if each.ways == 1]
    apart = [f"  {name}" for name, each in derived.items() if each.reference is None and each.ways > 1]
    return "\n".join(
        [f"reached in one way: {len(alone)}", *alone, f"in two, not by the reference: {len(apart)}", *apart]
    )


def in_full(entry: Claim | Block | Probe) -> str:
    """One entry with everything that the ledger knows of it."""
    if isinstance(entry, Claim):
        rows = _claim_rows(entry)
        head = f'{entry.id}: document {entry.document}, line {entry.line}, "{entry.place}"'
    elif isinstance(entry, Block):
        rows = [("alone", run_in_words(entry.alone)), ("in order", run_in_words(entry.in_order))]
        head = f"{entry.id}: document {entry.document}, lines {entry.first} to {entry.last}"
    else:
        rows = _probe_rows(entry)
        head = f"{entry.id}: document {entry.document}, line {entry.line}"
    shown = [f"  {name + ':':12} {text}" for name, text in rows if text]
    return "\n".join([head, f"  {entry.what}", *shown])


def _claim_rows(claim: Claim) -> list[tuple[str, str]]:
    judgement, derived = judged(claim.id), claim.derived
    rows = [
        ("verdict", judgement.verdict),
        ("stated", _stated(claim)),
        ("right", _right(claim) if claim.stated else ""),
        ("formula", plain(claim.formula)),
    ]
    if derived is not None:
        rows += [(name, text) for name, text in derived.inputs.items()]
        rows += [
            ("exact", written(derived.exact(), 30)),
            ("again", written(derived.again(), 30) if derived.again else ""),
            ("reference", written(derived.reference(), 17) if derived.reference else ""),
            ("one way", derived.one_way),
        ]
    rows += [
        ("chain", written(claim.chain()) if claim.chain else ""),
        ("slip", claim.slip),
        ("slip gives", written(claim.gives()) if claim.gives else ""),
        ("reason", claim.reason),
    ]
    return [*rows, *(("PROBLEM", problem) for problem in judgement.problems)]


def _probe_rows(probe: Probe) -> list[tuple[str, str]]:
    return [
        ("blocks", ", ".join(probe.blocks)),
        ("probe", probe.probe.strip().replace("\n", "\n" + 15 * " ")),
        ("prints", probe.prints.replace("\n", "\n" + 15 * " ")),
        ("corpus", probe.fault or probe.why_no_fault),
    ]


def run_in_words(run: Run) -> str:
    """What running a block comes to, in a line."""
    parts = [f"fails: {run.error}" if run.error else "runs"]
    parts += [f"warns: {', '.join(run.warnings)}"] if run.warnings else []
    parts += [f"prints {' / '.join(run.prints)}"] if run.prints else []
    return "; ".join(parts)


def entry_named(name: str) -> list[Claim | Block | Probe]:
    """The entry of that id, or every one whose id holds the name."""
    entries: dict[str, Claim | Block | Probe] = {**ledger().claims, **ledger().blocks, **ledger().probes}
    return [entries[name]] if name in entries else [entries[each] for each in entries if name in each]


def all_problems(folder: Path | None) -> list[str]:
    """Where the documents, the derivations or the code do otherwise than the ledger says."""
    from headcheck.golden.blocks import Library, block_problems, not_applicable, probe_problems

    if folder is not None:
        for document in DOCUMENTS:  # A folder without them is said at once: the claims take half a minute.
            Library(folder).lines(document)
    found = [
        f"{claim.id}: {problem}"
        for claim in ledger().claims.values()
        for problem in judged(claim.id).problems
    ]
    if folder is None:
        return found
    for block in ledger().blocks.values():
        if not not_applicable(block, folder):
            found += [f"{block.id}: {problem}" for problem in block_problems(block, folder)]
    for probe in ledger().probes.values():
        if not not_applicable(probe, folder):
            found += [f"{probe.id}: {problem}" for problem in probe_problems(probe, folder)]
    return found


def plain(formula: str) -> str:
    """LaTeX as a line of text: fractions as quotients, Greek letters, no braces."""
    for _ in range(4):  # innermost first
        formula = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)", formula)
        formula = re.sub(r"\\sqrt\{([^{}]*)\}", r"√(\1)", formula)
        formula = re.sub(r"\\(?:text|mathrm|operatorname)\{([^{}]*)\}", r"\1", formula)
        formula = re.sub(r"([_^])\{([^{}]*)\}", r"\1(\2)", formula)
    formula = (
        re.sub(r"\\begin\{[^}]*\}(.*?)\\end\{[^}]*\}", r"[\1]", formula).replace(r"\\", ";").replace("&", " ")
    )
    formula = re.sub(r"\\([a-zA-Z]+)", lambda found: SYMBOLS.get(found[1], found[1]), formula)
    return re.sub(r"\\[,;!]?|[{}]", "", formula)
