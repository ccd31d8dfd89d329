"""A subject's real conventions, found out on tiny inputs, and the declaration to paste."""

from dataclasses import MISSING, dataclass, fields
from typing import Any

import headcheck.attention.probes  # noqa: F401 - importing it registers its probes
from headcheck.attention.bench import PROBES, Bench, Finding, written
from headcheck.declarations import Attention


@dataclass(frozen=True)
class Probed:
    """What is known of a subject, and the declaration that says so."""

    findings: tuple[Finding, ...]
    declaration: Attention
    name: str

    def __str__(self) -> str:
        told = [each for each in self.findings if each.told]
        width = max((len(each.topic) for each in told), default=0)
        values = [each.value if isinstance(each.value, str) else written(each.value) for each in told]
        wide = min(max(map(len, values), default=0), 44)
        table = [f"{f.topic:{width}}  {v:{wide}}  {f.how}" for f, v in zip(told, values, strict=True)]
        unknown = [f"could not tell: {each.topic}: {each.how}" for each in self.findings if not each.told]
        return "\n".join([*table, *unknown, "", self.pasted])

    @property
    def pasted(self) -> str:
        """The declaration as Python with its imports, without the fields at their default."""
        given = [
            f"{each.name}={written(getattr(self.declaration, each.name))}"
            for each in fields(self.declaration)
            if each.name not in ("function", "name") and not _at_default(self.declaration, each)
        ]
        declaration = _wrapped(f"subject = headcheck.Attention({self.name}", given)
        if "replace(named(" not in declaration:
            return f"import headcheck\n\n{declaration}"
        imports = (
            "from dataclasses import replace\n\nimport headcheck\nfrom headcheck.arithmetic import named"
        )
        return f"{imports}\n\n{declaration}"


def probe_function(declaration: Attention, *, device: str = "cpu", name: str = "") -> Probed:
    """Run every probe."""
    bench = Bench(declaration, device)
    findings: list[Finding] = []
    for each in PROBES:
        found = each(bench)
        for finding in [found] if isinstance(found, Finding) else found:
            findings.append(finding)
            if finding.told and finding.field:
                bench.declaration = bench.declaration.but(**{finding.field: finding.value})
    name = name if name.isidentifier() else getattr(declaration.function, "__name__", "my_function")
    return Probed(tuple(findings), bench.declaration, name)


def _at_default(declaration: Attention, each: Any) -> bool:
    default = each.default if each.default is not MISSING else each.default_factory()
    return bool(getattr(declaration, each.name) == default)


def _wrapped(head: str, arguments: list[str], width: int = 100) -> str:
    line = ", ".join([head, *arguments]) + ")"
    if len(line) <= width:
        return line
    opening, _, first = head.partition("(")
    return "\n".join([f"{opening}(", *(f"    {each}," for each in [first, *arguments]), ")"])
