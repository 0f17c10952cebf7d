"""The one error a user should ever see."""


class UserError(Exception):
    """Bad input: what is wrong, and what to do about it.

    Doors print both lines and exit with status 2; anything else that escapes is a bug.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  {self.hint}" if self.hint else self.what
