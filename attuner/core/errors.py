"""The one error tree. Every message is a single line: what is wrong, where, and how to mend it.

AttunerError
├── UserError        bad input: a file, a key, a flag; nothing was done, nothing is lost
├── Refused          a law said no: the gate, conduct, a lease held by another process
│   ├── BudgetExceeded   the launch does not fit the budget that is left
│   └── RegisterChanged  rules/ or attuner/policy/ is not what the campaign was born with
├── Transient        contact lost, a locked file: the same call may work later (the only one that is retried)
└── Broken           an invariant does not hold: a damaged ledger, a record that contradicts another
"""


class AttunerError(Exception):
    """Base of every error that attuner raises on purpose; `str()` is one line for a person."""

    exit_code = 1


class UserError(AttunerError):
    """Input that a person must mend."""

    exit_code = 2


class Refused(AttunerError):
    """A law refused the act; nothing was launched and nothing was charged."""

    exit_code = 4


class BudgetExceeded(Refused):
    """The launch would not fit the budget that is left."""


class RegisterChanged(Refused):
    """The register or the judging code differs from what the campaign recorded at birth."""


class Transient(AttunerError):
    """Contact lost or a file locked: call again, attaching to the same attempt."""

    exit_code = 5


class Broken(AttunerError):
    """An invariant of the records does not hold; a person must look."""

    exit_code = 6
