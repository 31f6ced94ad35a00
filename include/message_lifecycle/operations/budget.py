"""What one pass may still take (EXP-7)."""

from __future__ import annotations

from dataclasses import dataclass

from message_lifecycle.model.settings import Policy


@dataclass(slots=True, kw_only=True)
class Budget:
    """Counts what was admitted, in order. The first thing always fits, or a large one would never go; after a refusal nothing does."""

    segments: int
    rows: int
    size_bytes: int
    segments_taken: int = 0
    rows_taken: int = 0
    bytes_taken: int = 0
    spent: bool = False

    @classmethod
    def of(cls, policy: Policy) -> Budget:
        segments, rows, size_bytes = policy.budget
        return cls(segments=segments, rows=rows, size_bytes=size_bytes)

    def admits(self, *, rows: int, size_bytes: int = 0) -> bool:
        """One segment, or messages of one."""
        over = (
            (self.segments and self.segments_taken + 1 > self.segments)
            or (self.rows and self.rows_taken + rows > self.rows)
            or (self.size_bytes and self.bytes_taken + size_bytes > self.size_bytes)
        )
        if self.spent or (over and self.segments_taken):
            self.spent = True
            return False
        self.segments_taken += 1
        self.rows_taken += rows
        self.bytes_taken += size_bytes
        return True
