"""Makes the renderer of a configuration."""

from protocol.agents.renderers import LIBRARY
from protocol.agents.settings import AgentSettings
from workers.agent.rendering.library import LibraryRenderer
from workers.agent.rendering.own import own_reader, own_renderer
from workers.agent.rendering.renderer import PlainRenderer, Renderer, TemplateRenderer
from workers.agent.rendering.tool_calls import READERS
from workers.models.tokenizer import load_tokenizer, stop_tokens_of


def make_renderer(model_directory: str, settings: AgentSettings) -> Renderer | None:
    """The renderer of `agent.renderer`; None if the tokenizer has no chat template, so that there is no chat.

    Raises: ConfigError if the directory has no tokenizer, the user's renderer lacks methods, or the library
    has none for this tokenizer.
    """
    tokenizer = load_tokenizer(model_directory)
    stops = stop_tokens_of(model_directory, tokenizer)
    name = settings.tool_calls
    read_calls = READERS[name] if name in READERS else own_reader(name)
    if settings.renderer in LIBRARY:
        return LibraryRenderer(settings.renderer, tokenizer, stops)
    if settings.renderer not in ("template", "plain"):
        return own_renderer(settings.renderer, tokenizer, stops)
    if settings.renderer == "template" and not tokenizer.chat_template:
        return None
    make = TemplateRenderer if settings.renderer == "template" else PlainRenderer
    renderer = make(tokenizer, read_calls=read_calls)
    renderer.end_at(stops)
    return renderer
