"""What the id of a law says: role/family/name."""


class Identified:
    """A law, or a row of one."""

    id: str

    @property
    def role(self) -> str:
        return self.id.partition("/")[0].replace("-", "_")

    @property
    def family(self) -> str:
        """With its role: attention/masks."""
        return self.id.rpartition("/")[0]

    @property
    def family_in_role(self) -> str:
        """Without its role: masks."""
        return self.family.partition("/")[2]

    @property
    def name(self) -> str:
        return self.id.rpartition("/")[2]

    @property
    def name_in_role(self) -> str:
        """The id without the role, as a corpus names it: masks/the-future-does-not-matter."""
        return self.id.partition("/")[2]
