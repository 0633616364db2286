"""Loss functions of tensors, one a file; sums over rows divided by a count the caller gives."""

from atroposlib.losses.across import ChunkTargets, chunk_likelihood, quotient_distillation
from atroposlib.losses.compatible import *  # noqa: F403  # the seed page's names
from atroposlib.losses.compatible import __all__ as _of_the_seed_page
from atroposlib.losses.generalized_kl import generalized_kl
from atroposlib.losses.groups import Groups, global_count
from atroposlib.losses.head import Head
from atroposlib.losses.kl_estimator import kl_estimator
from atroposlib.losses.next_token import next_token_logprobs
from atroposlib.losses.policy_gradient import policy_gradient, reverse_kl_advantages
from atroposlib.losses.teacher_renormalized_kl import teacher_renormalized_kl
from atroposlib.losses.topk_distillation import topk_distillation, topk_distillation_from_logits
from atroposlib.losses.truncated_kl import truncated_kl

__all__ = [
    "ChunkTargets",
    "Groups",
    "Head",
    "chunk_likelihood",
    "generalized_kl",
    "global_count",
    "kl_estimator",
    "next_token_logprobs",
    "policy_gradient",
    "quotient_distillation",
    "reverse_kl_advantages",
    "teacher_renormalized_kl",
    "topk_distillation",
    "topk_distillation_from_logits",
    "truncated_kl",
    *_of_the_seed_page,
]
