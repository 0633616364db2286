"""Parts of the study of losses across tokenizers: texts, models, losses and measures."""
