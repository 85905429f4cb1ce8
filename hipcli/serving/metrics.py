"""What a server counts, as Prometheus reads it: numbers and names of routes, never a document's name or text."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from hipcli.serving.answering import Answered

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counters of one server. waiting, loaded, documents: asked for when the figures are read."""

    def __init__(self, waiting: Callable[[], int], loaded: Callable[[], int], documents: Callable[[], int]) -> None:
        registry = self._registry = CollectorRegistry()
        # memory, processor time and open files of this process
        ProcessCollector(registry=registry)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"hip_{name}", what, labels, registry=registry)

        def seconds(name: str, what: str) -> Histogram:
            return Histogram(f"hip_{name}_seconds", what, buckets=_SECONDS, registry=registry)

        for name, what, value in (
            ("waiting_jobs", "Questions that wait for their turn", waiting),
            ("loaded_documents", "Documents whose keys and values are in memory", loaded),
            ("documents", "Documents of all tokens", documents),
        ):
            Gauge(f"hip_{name}", what, registry=registry).set_function(value)
        self.requests = counter("requests", "Requests by route and status", "route", "status")
        self.refused = counter("refused", "Requests refused, by reason", "reason")
        self.answers = counter("answers", "Answers by why they ended: stop, length, gone or failed", "end")
        self._prompt = counter("prompt_tokens", "Tokens that answers were based on")
        self._prefilled = counter("prefilled_tokens", "Of these, tokens that were computed for them")
        self._generated = counter("generated_tokens", "Tokens of answers")
        self._waited = seconds("queue", "From a request to its turn")
        self._first = seconds("first_token", "From its turn to the first token")
        self._worked = seconds("answer", "From its turn to the last token")

    def count(self, answered: Answered) -> None:
        """Count an answer that came to its end."""
        self.answers.labels(answered.finish_reason).inc()
        self._prompt.inc(answered.prompt_tokens)
        self._prefilled.inc(answered.prefilled_tokens)
        self._generated.inc(answered.answer_tokens)
        self._waited.observe(answered.wait_seconds)
        self._first.observe(answered.first_seconds)
        self._worked.observe(answered.seconds)

    def text(self) -> bytes:
        """All figures, as they are now."""
        return generate_latest(self._registry)
