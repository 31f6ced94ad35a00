"""Every error a person can meet, under one root: what was found, where, what is allowed, what to do.

`exit_code` is the status of the `lifecycle` command and of the Spark applications, by kind of error.
"""

from message_lifecycle.model.errors.compacted import CompactedTableMissing as CompactedTableMissing
from message_lifecycle.model.errors.compacted import CompactedTableThere as CompactedTableThere
from message_lifecycle.model.errors.compacted import CompactionRunning as CompactionRunning
from message_lifecycle.model.errors.compacted import HorizonBeyondLog as HorizonBeyondLog
from message_lifecycle.model.errors.compacted import TopicWithoutKeys as TopicWithoutKeys
from message_lifecycle.model.errors.given import FutureAsOf as FutureAsOf
from message_lifecycle.model.errors.given import InvalidAppend as InvalidAppend
from message_lifecycle.model.errors.given import InvalidInstant as InvalidInstant
from message_lifecycle.model.errors.given import InvalidName as InvalidName
from message_lifecycle.model.errors.given import InvalidScenario as InvalidScenario
from message_lifecycle.model.errors.given import InvalidSetting as InvalidSetting
from message_lifecycle.model.errors.given import InvalidTopicUri as InvalidTopicUri
from message_lifecycle.model.errors.given import OffsetNotGiven as OffsetNotGiven
from message_lifecycle.model.errors.given import TopicExists as TopicExists
from message_lifecycle.model.errors.given import UnknownPartition as UnknownPartition
from message_lifecycle.model.errors.given import UnknownTopic as UnknownTopic
from message_lifecycle.model.errors.kinds import EXIT_BAD_INPUT as EXIT_BAD_INPUT
from message_lifecycle.model.errors.kinds import EXIT_INTERNAL as EXIT_INTERNAL
from message_lifecycle.model.errors.kinds import EXIT_REFUSED as EXIT_REFUSED
from message_lifecycle.model.errors.kinds import EXIT_UNAVAILABLE as EXIT_UNAVAILABLE
from message_lifecycle.model.errors.kinds import BadInput as BadInput
from message_lifecycle.model.errors.kinds import LifecycleError as LifecycleError
from message_lifecycle.model.errors.kinds import Refused as Refused
from message_lifecycle.model.errors.kinds import Unavailable as Unavailable
from message_lifecycle.model.errors.readers import AnotherOrigin as AnotherOrigin
from message_lifecycle.model.errors.readers import InvalidProgress as InvalidProgress
from message_lifecycle.model.errors.readers import OriginBehind as OriginBehind
from message_lifecycle.model.errors.readers import ReplicaProgress as ReplicaProgress
from message_lifecycle.model.errors.readers import UnknownConsumer as UnknownConsumer
from message_lifecycle.model.errors.runs import AlreadyAnswered as AlreadyAnswered
from message_lifecycle.model.errors.runs import AmbiguousPlan as AmbiguousPlan
from message_lifecycle.model.errors.runs import BatchNotOpen as BatchNotOpen
from message_lifecycle.model.errors.runs import ChangedFile as ChangedFile
from message_lifecycle.model.errors.runs import LedgerMismatch as LedgerMismatch
from message_lifecycle.model.errors.runs import NotReady as NotReady
from message_lifecycle.model.errors.runs import OpenBatch as OpenBatch
from message_lifecycle.model.errors.runs import OpenPlan as OpenPlan
from message_lifecycle.model.errors.runs import PlanConflict as PlanConflict
from message_lifecycle.model.errors.runs import RepeatedFile as RepeatedFile
from message_lifecycle.model.errors.runs import TopicBusy as TopicBusy
from message_lifecycle.model.errors.runs import UnknownBatch as UnknownBatch
from message_lifecycle.model.errors.runs import UnknownPlan as UnknownPlan
from message_lifecycle.model.errors.runs import UnnamedApproval as UnnamedApproval
from message_lifecycle.model.errors.storage import CatalogUnavailable as CatalogUnavailable
from message_lifecycle.model.errors.storage import CommitRefused as CommitRefused
from message_lifecycle.model.errors.storage import CommitUnknown as CommitUnknown
from message_lifecycle.model.errors.storage import ForeignTable as ForeignTable
from message_lifecycle.model.errors.storage import SparkUnavailable as SparkUnavailable
from message_lifecycle.model.errors.storage import StorageFull as StorageFull
from message_lifecycle.model.errors.storage import TableBusy as TableBusy
from message_lifecycle.model.errors.wire import WireError as WireError
