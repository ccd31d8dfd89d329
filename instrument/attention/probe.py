"""A subject's real conventions, found out on tiny inputs, and the declaration to paste."""

from dataclasses import dataclass

import headcheck.attention.probes  # isort: skip - they run in the order in which they are registered
import headcheck.attention.feature_probes  # isort: skip - importing it registers its probes
import headcheck.attention.dtype_probes  # noqa: F401 - the same
from headcheck.attention.bench import PROBES, Bench, Finding
from headcheck.declarations import Attention
from headcheck.pasting import commented, identifier, pasted, written

NOTHING_TO_PASTE = (
    "no declaration to paste: as long as the layout is unknown, what else was seen may be an effect of it; "
    "declare the layout (--declare layout=...) and probe again"
)


@dataclass(frozen=True)
class Probed:
    """What is known of a subject, and the declaration that says so."""

    findings: tuple[Finding, ...]
    declaration: Attention
    name: str

    def __str__(self) -> str:
        # The last of a field counts.
        told = list({each.topic: each for each in self.findings if each.told}.values())
        width = max((len(each.topic) for each in told), default=0)
        values = [each.value if isinstance(each.value, str) else written(each.value) for each in told]
        wide = min(max(map(len, values), default=0), 44)
        table = [f"{f.topic:{width}}  {v:{wide}}  {f.how}" for f, v in zip(told, values, strict=True)]
        unknown = [f"could not tell: {each.topic}: {each.how}" for each in self.findings if not each.told]
        unsure = any(each.topic == "layout" and not each.told for each in self.findings)
        last = commented(NOTHING_TO_PASTE) if unsure else self.pasted
        return "\n".join([*map(commented, [*table, *unknown]), "", last])

    @property
    def pasted(self) -> str:
        """The declaration as Python with its imports, without the fields at their default."""
        return pasted(self.declaration, self.name)


def probe_function(declaration: Attention, *, device: str = "cpu", name: str = "") -> Probed:
    """Run every probe."""
    bench = Bench(declaration, device)
    findings: list[Finding] = []
    for each in PROBES:
        for finding in each.findings(bench):
            findings.append(finding)
            if finding.told and finding.declarable:
                bench.declaration = bench.declaration.but(**{finding.topic: finding.value})
    return Probed(tuple(findings), bench.declaration, identifier(declaration, name))
