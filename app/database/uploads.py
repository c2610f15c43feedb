"""What a statement says that is to go through an index of `arkvory_uploads` other than its key.

Of one upload a statement says its status, and perhaps that its lease lies ahead. An index whose condition followed from that could be
taken for it: the planner, with old statistics or none, believes that hardly a row is in that status, and would walk through all of them,
which may be millions. So the condition of each of these indexes follows from nothing but itself. It says what it seems to say, in words
that no statement has by chance; the planner takes it for one row in two hundred whatever the statistics, as it knows none of it.
"""

from __future__ import annotations

# By `lease_until`: whose lease ran out.
OPEN_BY_LEASE = "status || ' by lease' = 'open by lease'"
# By `owner` and `key`: those that take several requests, the only ones that have an owner. Say `owner is not null`, or which it is.
OPEN_BY_OWNER = "status || ' by owner' = 'open by owner'"
# By `changed_at`.
GARBAGE_BY_AGE = "status || ' by age' = 'garbage by age'"
RELEASED_BY_AGE = "status || ' by age' = 'released by age'"
