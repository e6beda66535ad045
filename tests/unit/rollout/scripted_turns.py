"""Turns that a test has written down."""

from tests.generated import generated
from verl_hpc.rollout.partial import observed
from verl_hpc.rollout.protocol import FeedAround, Request

OBSERVATION = (7, 8)


def goes_on(response, left, most):
    """Whether a turn is answered: there is an observation left, and room for it and another."""
    return left > 0 and len(response.tokens) + len(OBSERVATION) < most


class ScriptedTurns(FeedAround):
    """So many observations for each prompt, each the same tokens; some come late.

    Args:
        observations: by prompt, how many turns of the model are answered.
        most: tokens of a response.
        late: prompts whose observation comes only once the engine has nothing else to do.
    """

    def __init__(self, feed, observations, most, late=()):
        super().__init__(feed)
        self.left, self.most, self.late = dict(observations), most, set(late)
        self.waiting, self.log = {}, []

    def ended(self, index, response):
        self.log.append((index, response))
        if goes_on(response, self.left.get(index, 0), self.most):
            self.left[index] -= 1
            self.waiting[index] = response
        else:
            super().ended(index, response)

    def next(self, num_running):
        started = [*super().next(num_running)]
        idle = not (num_running or started)
        for i in [i for i in self.waiting if idle or i not in self.late]:
            prompt, seed = self.requests[i].prompt, 100 * i + self.left[i]
            started.append((i, Request(prompt, seed, observed(self.waiting.pop(i), OBSERVATION))))
        return started


def one_by_one(engine, prompt, sampling, seed, index, turns):
    """A response with turns, each of which is a call of its own."""
    left, (response,) = turns.get(index, 0), generated(engine, [prompt], sampling, [seed])
    while goes_on(response, left, sampling.max_tokens):
        left -= 1
        prefix, seed = observed(response, OBSERVATION), 100 * index + left
        (response,) = generated(engine, [prompt], sampling, [seed], prefixes=[prefix])
    return response
