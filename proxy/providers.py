"""Which provider an upstream or a model's path stands for, by the names of the window table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from proxy.core.model_names import path_of
from proxy.locality import is_loopback_host

OLLAMA_PORT: Final = 11_434

# Ends of host names. Where several providers share models with different windows, the host decides.
_HOSTS: Final = {
    "openai.com": "openai",
    "openai.azure.com": "azure",
    "cognitiveservices.azure.com": "azure",
    "services.ai.azure.com": "azure_ai",
    "models.ai.azure.com": "azure_ai",
    "anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gemini",
    "aiplatform.googleapis.com": "vertex_ai",
    "amazonaws.com": "bedrock",
    "mistral.ai": "mistral",
    "groq.com": "groq",
    "deepseek.com": "deepseek",
    "x.ai": "xai",
    "together.xyz": "together_ai",
    "together.ai": "together_ai",
    "fireworks.ai": "fireworks_ai",
    "deepinfra.com": "deepinfra",
    "cerebras.ai": "cerebras",
    "sambanova.ai": "sambanova",
    "dashscope.aliyuncs.com": "dashscope",
    "dashscope-intl.aliyuncs.com": "dashscope",
    "moonshot.ai": "moonshot",
    "moonshot.cn": "moonshot",
    "minimax.io": "minimax",
    "z.ai": "zai",
    "bigmodel.cn": "zai",
    "perplexity.ai": "perplexity",
    "novita.ai": "novita",
    "cohere.com": "cohere",
    "cohere.ai": "cohere",
    "nebius.com": "nebius",
    "hyperbolic.xyz": "hyperbolic",
    "ai-gateway.vercel.sh": "vercel_ai_gateway",
    "githubcopilot.com": "github_copilot",
    "databricks.com": "databricks",
    "azuredatabricks.net": "databricks",
    "baseten.co": "baseten",
    "lambda.ai": "lambda_ai",
    "cloudflare.com": "cloudflare",
    "snowflakecomputing.com": "snowflake",
    "scaleway.ai": "scaleway",
    "ovh.net": "ovhcloud",
    "wandb.ai": "wandb",
    "volces.com": "volcengine",
    "ai21.com": "ai21",
    "gmi-serving.com": "gmi",
    "aihubmix.com": "aihubmix",
}

# Folders of model names that are no names of providers: makers as hubs and routers write them.
_FOLDERS: Final = {
    "google": "gemini",
    "x-ai": "xai",
    "z-ai": "zai",
    "zai-org": "zai",
    "mistralai": "mistral",
    "deepseek-ai": "deepseek",
    "moonshotai": "moonshot",
    "minimaxai": "minimax",
    "amazon": "bedrock",
    "qwen": "dashscope",
    "alibaba": "dashscope",
}

MAKERS: Final = (
    "openai",
    "anthropic",
    "gemini",
    "mistral",
    "deepseek",
    "xai",
    "moonshot",
    "zai",
    "minimax",
    "dashscope",
    "cohere",
    "ai21",
    "meta",
)
"""Those who know their own models best, asked where neither host nor name says anything."""


def provider_of_host(host: str) -> str | None:
    """Return the provider that answers under this host name."""
    labels = host.lower().rstrip(".").split(".")
    ends = (".".join(labels[start:]) for start in range(len(labels) - 1))
    return next((_HOSTS[end] for end in ends if end in _HOSTS), None)


def providers_of_path(model: str) -> Iterator[str]:
    """Yield the providers that the folders of a model's name stand for, the innermost first."""
    for folder in reversed(path_of(model)):
        yield _FOLDERS.get(folder, folder)


class Address(NamedTuple):
    """Host and port of an upstream."""

    host: str
    port: int | None

    @property
    def is_loopback(self) -> bool:
        """Whether the upstream runs on this machine."""
        return is_loopback_host(self.host)

    @property
    def is_ollama(self) -> bool:
        """Whether the port is the one that Ollama listens on."""
        return self.port == OLLAMA_PORT


@lru_cache(maxsize=1024)
def address_of(origin: str) -> Address:
    """Return host and port of an origin such as "http://127.0.0.1:8000"; an odd one has neither."""
    try:
        parts = urlsplit(origin)
        return Address(parts.hostname or "", parts.port)
    except ValueError:
        return Address("", None)
