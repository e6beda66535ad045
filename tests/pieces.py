"""What each call of a rollout engine gave of each response, to compare with what is trained on."""

from dataclasses import dataclass

from verl_hpc.generation.slots import seed_of


@dataclass(frozen=True)
class Piece:
    """Tokens that one call added to a response."""

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    version: int
    """Version of the weights that the engine had."""


def note(pieces, version, feed):
    """Add what a call gave to `pieces`, by the seed of the response in this call."""
    for request, response in zip(feed.requests, feed.responses, strict=True):
        known = len(request.prefix.tokens)
        piece = Piece(response.tokens[known:], response.log_probs[known:], version)
        if piece.tokens:
            assert request.seed not in pieces, "random numbers are used twice"
            pieces[request.seed] = piece


def take(pieces, run_seed, step, sample):
    """The tokens, log-probs and versions of a sample, whose pieces are then used up."""
    tokens, log_probs, versions = [], [], []
    while len(tokens) < sample.response_length:
        purpose = f"rollout+{len(tokens)}" if tokens else "rollout"
        piece = pieces.pop(seed_of(run_seed, purpose, step, sample.index))
        tokens += piece.tokens
        log_probs += piece.log_probs
        versions += [piece.version] * len(piece.tokens)
    return tokens, log_probs, versions
