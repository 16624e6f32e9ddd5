"""The names of transformers that are used here, each from where it is defined.

Its own __init__ imports every model that it knows, which would be most of what a type checker reads.
"""

from transformers.cache_utils import Cache as Cache
from transformers.configuration_utils import PretrainedConfig as PretrainedConfig
from transformers.generation.configuration_utils import GenerationConfig as GenerationConfig
from transformers.modeling_utils import AttentionInterface as AttentionInterface
from transformers.modeling_utils import PreTrainedModel as PreTrainedModel
from transformers.models.auto.configuration_auto import AutoConfig as AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM as AutoModelForCausalLM
from transformers.models.auto.modeling_auto import (
    AutoModelForSequenceClassification as AutoModelForSequenceClassification,
)
from transformers.models.auto.tokenization_auto import AutoTokenizer as AutoTokenizer
