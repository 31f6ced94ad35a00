"""The protocols that the verbs need of a store and of a gate. The memory store is the reference implementation of each."""

from message_lifecycle.ports.beside import Documents as Documents
from message_lifecycle.ports.beside import QuarantineStore as QuarantineStore
from message_lifecycle.ports.beside import ViewReader as ViewReader
from message_lifecycle.ports.beside import ViewStore as ViewStore
from message_lifecycle.ports.change import NO_CONTEXT as NO_CONTEXT
from message_lifecycle.ports.change import ChangeStore as ChangeStore
from message_lifecycle.ports.change import CommitContext as CommitContext
from message_lifecycle.ports.change import Gate as Gate
from message_lifecycle.ports.change import Prepared as Prepared
from message_lifecycle.ports.log import Copied as Copied
from message_lifecycle.ports.log import Copier as Copier
from message_lifecycle.ports.log import Groups as Groups
from message_lifecycle.ports.log import HistoryReader as HistoryReader
from message_lifecycle.ports.log import LogIntegrity as LogIntegrity
from message_lifecycle.ports.log import LogReturns as LogReturns
from message_lifecycle.ports.log import MessageReader as MessageReader
from message_lifecycle.ports.log import MessageStore as MessageStore
from message_lifecycle.ports.log import MessageWriter as MessageWriter
from message_lifecycle.ports.log import Topic as Topic
from message_lifecycle.ports.log import Topics as Topics
from message_lifecycle.ports.past import DeletedReclaimer as DeletedReclaimer
from message_lifecycle.ports.past import Eraser as Eraser
from message_lifecycle.ports.past import Reclaimer as Reclaimer
from message_lifecycle.ports.past import TopicDeleter as TopicDeleter
