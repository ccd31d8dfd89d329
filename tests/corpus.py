"""Everything wrong and everything right, of every role, as `headcheck teeth` reads it."""

from tests import roles
from tests.faults import FAULTS, VARIANTS

WRONG = {**FAULTS, **roles.WRONG}
RIGHT = {**VARIANTS, **roles.RIGHT}
