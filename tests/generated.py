"""What an engine answers to prompts, in a feed of a test's own."""

from verl_hpc.rollout.protocol import NOT_BEGUN, Feed, FeedAround, Request, never


class Until(FeedAround):
    """Ends the call once `until(finished)` is true of the responses that are finished."""

    def __init__(self, feed, until):
        super().__init__(feed)
        self._until = until

    def stops(self, asks):
        return super().stops(asks) or self._until(self.finished)


def feed_of(prompts, seeds, prefixes=None, interrupted=never):
    given = zip(prompts, seeds, prefixes or [None] * len(prompts), strict=True)
    return Feed([Request(p, seed, prefix or NOT_BEGUN) for p, seed, prefix in given], interrupted)


def generated(engine, prompts, sampling, seeds, interrupted=never, *, prefixes=None, until=None):
    """The engine's responses; those that a call leaves are unfinished."""
    feed = feed_of(prompts, seeds, prefixes, interrupted)
    engine.generate(feed if until is None else Until(feed, until), sampling)
    return feed.responses
