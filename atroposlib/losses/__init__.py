"""Loss functions of tensors, one a file; sums over rows divided by a count the caller gives."""

from atroposlib.losses.topk_distillation import topk_distillation_from_logits

__all__ = ["topk_distillation_from_logits"]
