"""Leader election in PostgreSQL: runs a job while this process leads an election.

The names of this module are those for threads; ``leader_election.aio`` has them for asyncio. The
extension ``leader_election`` must be installed in the database.
"""

from ._errors import Kind, LeaderElectionError, LostError, PermanentError
from ._follow import Leader
from ._options import Health, Reason, State
from ._term import AsyncTerm, Term
from ._threads import Elector, every, follow, leader
from .aio import AsyncElector

__version__ = "1.0.0"
__all__ = ["AsyncElector", "AsyncTerm", "Elector", "Leader", "LeaderElectionError", "LostError"]
__all__ += ["Health", "Kind", "PermanentError", "Reason", "State", "Term"]
__all__ += ["every", "follow", "leader"]
