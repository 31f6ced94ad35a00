"""The seams: what the verbs need of a store and a gate. Each is small; the memory store is the reference."""

from message_lifecycle.ports.documents import Documents as Documents
from message_lifecycle.ports.erasure import Eraser as Eraser
from message_lifecycle.ports.quarantine import QuarantineStore as QuarantineStore
from message_lifecycle.ports.reclaiming import DeletedReclaimer as DeletedReclaimer
from message_lifecycle.ports.reclaiming import Reclaimer as Reclaimer
from message_lifecycle.ports.stores import NOTHING_GIVEN as NOTHING_GIVEN
from message_lifecycle.ports.stores import ChangeStore as ChangeStore
from message_lifecycle.ports.stores import Copied as Copied
from message_lifecycle.ports.stores import Copier as Copier
from message_lifecycle.ports.stores import Gate as Gate
from message_lifecycle.ports.stores import Given as Given
from message_lifecycle.ports.stores import Groups as Groups
from message_lifecycle.ports.stores import MessageReader as MessageReader
from message_lifecycle.ports.stores import MessageStore as MessageStore
from message_lifecycle.ports.stores import MessageWriter as MessageWriter
from message_lifecycle.ports.stores import Progressed as Progressed
from message_lifecycle.ports.stores import Topic as Topic
from message_lifecycle.ports.stores import Topics as Topics
from message_lifecycle.ports.topic_delete import TopicDeleter as TopicDeleter
from message_lifecycle.ports.undo import HistoryReader as HistoryReader
from message_lifecycle.ports.views import ViewStore as ViewStore
