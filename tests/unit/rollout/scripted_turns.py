"""Turns that a test has written down."""

from verl_hpc.rollout.partial import observed

OBSERVATION = (7, 8)


def goes_on(response, left, most):
    """Whether a turn is answered: there is an observation left, and room for it and another."""
    return left > 0 and len(response.tokens) + len(OBSERVATION) < most


class ScriptedTurns:
    """So many observations for each prompt, each the same tokens; some come late.

    Args:
        observations: by prompt, how many turns of the model are answered.
        most: tokens of a response.
        late: prompts whose observation comes only once the engine has nothing else to do.
    """

    def __init__(self, observations, most, late=()):
        self.left, self.most, self.late = dict(observations), most, set(late)
        self.waiting, self.log = {}, []

    def ended(self, index, response):
        self.log.append((index, response))
        if goes_on(response, self.left.get(index, 0), self.most):
            self.left[index] -= 1
            self.waiting[index] = response

    def next(self, wait):
        ready = [i for i in self.waiting if wait or i not in self.late]
        return [
            (i, observed(self.waiting.pop(i), OBSERVATION), 100 * i + self.left[i]) for i in ready
        ]

    @property
    def under_way(self):
        return self.waiting.keys()


def one_by_one(engine, prompt, sampling, seed, index, turns):
    """A response with turns, each of which is a call of its own."""
    left, (response,) = turns.get(index, 0), engine.generate([prompt], sampling, [seed])
    while goes_on(response, left, sampling.max_tokens):
        left -= 1
        prefix = observed(response, OBSERVATION)
        (response,) = engine.generate([prompt], sampling, [100 * index + left], prefixes=[prefix])
    return response
