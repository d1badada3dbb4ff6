"""Which rooms a run has, the same on all ranks. Pure."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Plan:
    rooms: int = 120
    concurrency: int = 16
    first_room: int = 1
    layers: int = 2
    row_bytes: int = 64  # K (or V) of one token of the whole model
    abort_percent: int = 10  # half of them by prefill, half by decode
    poisoned_rooms: int = 8  # failed rooms whose freed pages are watched before they are used again
    max_pages: int = 6
    twice: int = -1  # this request has the room number of the one before it

    @property
    def rows(self):
        return 2 * self.concurrency + self.poisoned_rooms

    @property
    def pool_pages(self):
        return 1 + self.max_pages * (2 * self.concurrency + self.poisoned_rooms)

    def room(self, number):
        return self.first_room + number - (number == self.twice)

    def pages(self, number):
        return 1 + number % self.max_pages

    def prefix_pages(self, number):
        """Every fifth request finds its prompt in decode's prefix cache: a page, or all."""
        pages = self.pages(number)
        return 0 if number % 5 else pages if number % 10 == 0 else min(1, pages)

    def tokens(self, number):
        return self.pages(number) * 16

    def is_chunked(self, number):
        return number % 3 == 0

    def abort_of(self, number):
        """Who aborts this room and when, as "decode early" (before its pages are given), "decode
        late", "prefill early" (before anything is sent), "prefill late"; None for most rooms."""
        if not self.abort_percent:
            return None
        step = 100 // self.abort_percent
        if number % step != step - 1:
            return None
        return ("decode late", "prefill late", "decode early", "prefill early")[
            number // step % 4]

    def aborted(self):
        return sum(self.abort_of(number) is not None for number in range(self.rooms))
