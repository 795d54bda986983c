"""Budget of the Ideator's view in characters: one total, and the share of each part.

The parts of the context keep their length from round to round, so that a provider's cache serves them; what the other
parts leave goes to the code.
"""

from __future__ import annotations

MAX_VIEW_CHARS = 30_000
CONTEXT_CHARS = 21_900  # notes from earlier runs and the record of the rounds, which gets what the notes leave
NOTES_CHARS = 2_500
TURN_CHARS = 4_300  # changes of code, failed ideas and the present state
STATE_CHARS = 2_200
FAILURES_CHARS = 600
ASIDE_CHARS = MAX_VIEW_CHARS - CONTEXT_CHARS - TURN_CHARS  # lessons, the machine and what is left of the budget
LESSONS_CHARS = 3_000
MACHINE_CHARS = 400
LEFT_CHARS = 400
