"""Routes as values: what the application registers and what the interface description is built from."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
from quart import Response, request
from quart.routing import QuartRule
from quart_trio import QuartTrio

from gateway.api.requests.bodies import json_body
from gateway.api.requests.reading import (
    PAGE_LIMIT,
    Query,
    page_limit,
    path_uuid,
    read_body,
    read_query,
)
from gateway.api.responses import json_response, raw_json_response, success
from gateway.api.schemas import integer, ref
from supervisor.reading.model import Model
from supervisor.reading.schema import Components
from supervisor.reading.shapes import properties_of

if TYPE_CHECKING:
    from gateway.api.contract import Conversation, View
    from gateway.api.services import Services
    from gateway.configuration.config import Config

Handler = Callable[..., Awaitable[Response]]
Schema = Mapping[str, Any]
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

DONE: Final = ref("Success")
"""The schema of `{"success": true}`."""

EXAMPLE_DIR: Final = "/tmp/ostler-example"  # noqa: S108 - only shown
"""The directory of examples."""

PATH_PARAMETER = re.compile(r"<(?:path:)?(\w+)>")
UUID_PARAMETERS = frozenset({"conversation_id", "profile_id", "command_id"})


@attrs.frozen
class Param:
    """A parameter in the query or in the headers."""

    name: str
    schema: Schema
    required: bool = False
    description: str = ""


def params_of(model: type[Query], named: Mapping[str, Schema] | None = None) -> tuple[Param, ...]:
    """The parameters of a query. `named` are the schemas of what its description leaves open."""
    components = Components(named or {})
    params = []
    for each in properties_of(model):
        more = dict(each.metadata.get("schema", {}))
        description = more.pop("description", "")
        schema = {**components.value_of(each), **more}
        if each.default is not attrs.NOTHING and each.default is not None:
            schema.setdefault("default", each.default)
        params.append(Param(each.name, schema, each.required, description))
    return tuple(params)


@attrs.frozen(kw_only=True)
class Route:
    """One operation. `path` is in the application's form (`<name>`, `<path:name>` with slashes). `body` is
    the description of the body, or its JSON schema where there is none, and `example` one that the demo agent
    takes; `result` is a JSON schema.

    `errors` are its other statuses, with the reason; their bodies are those of errors (below 300: its
    result), unless `error_results` has a schema, or None for no body.

    `path_schemas` are those of path parameters that are more than strings, and no UUIDs.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    description: str
    tag: str
    query: tuple[Param, ...] = ()
    headers: tuple[Param, ...] = ()
    path_schemas: Mapping[str, Schema] = attrs.field(factory=dict)
    body: type[Model] | Schema | None = None
    body_required: bool = True
    body_media_type: str = "application/json"
    example: Any = None
    result: Schema | None = None
    status: int = 200
    media_type: str = "application/json"
    other_media_types: tuple[str, ...] = ()
    errors: Mapping[int, str] = attrs.field(factory=dict)
    error_results: Mapping[int, Schema | None] = attrs.field(factory=dict)

    @property
    def template(self) -> str:
        """The path in OpenAPI's form."""
        return PATH_PARAMETER.sub(r"{\1}", self.path)

    @property
    def path_parameters(self) -> list[str]:
        """Names of the parameters in the path, in order."""
        return PATH_PARAMETER.findall(self.path)


async def find(services: Services, conversation_id: str) -> Conversation:
    """The conversation of a path. Raises InvalidRequest (no UUID) or UnknownConversation."""
    return await services.supervisor.get(path_uuid(conversation_id, "conversation_id"))


async def find_view(services: Services, conversation_id: str) -> View:
    """What can be read of it, wherever it is. Raises as `find` does."""
    return await services.supervisor.view(path_uuid(conversation_id, "conversation_id"))


@attrs.frozen
class Operation:
    """What is declared of a route; its path is below those of its group. `anywhere`: it needs no more of its
    conversation than what is stored, and any server answers it."""

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    query: type[Query] | None
    body: type[Model] | Schema | Callable[[Config], Schema] | None
    errors: Mapping[int, str]
    anywhere: bool
    more: dict[str, Any]


@attrs.frozen
class Group:
    """Operations below one path, or below several, each with further errors.

    Of a handler's docstring the first paragraph is the summary, and the second one the description; below a
    further path the summary says so. A handler gets what it names: `services`; `conversation`, the one of
    the path; `query` and `body`, read as they are described; `json`, the body as it came; and parameters of
    the path. What it returns is a response, JSON as bytes, a value that becomes JSON, or None for success.
    """

    tag: str
    above: str | Mapping[str, Mapping[int, str]]
    errors: Mapping[int, str] = attrs.field(factory=dict)
    path_schemas: Mapping[str, Schema] = attrs.field(factory=dict)
    _operations: list[Operation] = attrs.field(factory=list, init=False)

    def __call__(
        self,
        asked: str,
        *,
        query: type[Query] | None = None,
        body: type[Model] | Schema | Callable[[Config], Schema] | None = None,
        errors: Mapping[int, str] | None = None,
        anywhere: bool = False,
        **more: Any,
    ) -> Callable[[F], F]:
        """Declare the operation of a handler. `asked` is its method and the rest of its path; `more` are
        fields of Route."""
        method, _, path = asked.partition(" ")

        def declare(handler: F) -> F:
            operation = Operation(method, path, handler, query, body, errors or {}, anywhere, more)
            self._operations.append(operation)
            return handler

        return declare

    def routes(self, services: Services) -> tuple[Route, ...]:
        """The routes of all operations."""
        above = {self.above: {}} if isinstance(self.above, str) else self.above
        return tuple(
            self._route(services, each, path, errors)
            for path, errors in above.items()
            for each in self._operations
        )

    def _route(self, services: Services, each: Operation, above: str, errors: Mapping[int, str]) -> Route:
        most = services.config.max_page
        limit = {PAGE_LIMIT: integer(1, most, most)}
        body = each.body
        if body is not None and not isinstance(body, type | Mapping):
            body = body(services.config)
        summary, description, *_ = (
            " ".join(text.split()) for text in f"{each.handler.__doc__}\n\n".split("\n\n")
        )
        named: dict[str, Any] = {
            "summary": summary.removesuffix("."),
            "description": description,
            "tag": self.tag,
            "path_schemas": self.path_schemas,
            "query": () if each.query is None else params_of(each.query, limit),
            "body": body,
            "errors": {**self.errors, **errors, **each.errors},
            "result": DONE,
            **each.more,
        }
        named["summary"] += self._further(above)
        handler = _handler(services, each, named.get("status", 200))
        return Route(method=each.method, path=above + each.path, handler=handler, **named)

    def _further(self, above: str) -> str:
        """What the summary says below another path than the first."""
        if isinstance(self.above, str) or above == next(iter(self.above)):
            return ""
        return " (of a conversation)" if "<" in above else " (under another path)"


def _handler(services: Services, each: Operation, status: int) -> Handler:
    wanted = each.handler.__annotations__  # of all parameters; a signature would take longer at the start
    checks = page_limit(services.config.max_page)
    required = each.more.get("body_required", True)
    finding = find_view if each.anywhere else find

    async def handle(**given: Any) -> Response:
        if "services" in wanted:
            given["services"] = services
        if "conversation" in wanted:
            given["conversation"] = await finding(services, given.pop("conversation_id"))
        if "query" in wanted and each.query is not None:
            given["query"] = read_query(each.query, request.args, checks)
        if "json" in wanted:
            given["json"] = await json_body(request, required=required)
        elif "body" in wanted:
            body = await json_body(request, required=required)
            given["body"] = None if body is None and not required else read_body(each.body, body)
        answer = await each.handler(**given)
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, bytes):
            return raw_json_response(answer)
        return success() if answer is None else json_response(answer, status)

    return handle


class MatchingRule(QuartRule):
    """A rule that URLs are matched with. Few are built from one, so the code for that is compiled when it
    is needed: for all rules that took tens of milliseconds of each start."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        compile_builder = super()._compile_builder
        compiled: Callable[..., tuple[str, str]] | None = None

        def build(rule: MatchingRule, **values: Any) -> tuple[str, str]:
            nonlocal compiled
            if compiled is None:
                compiled = compile_builder(append_unknown)
            return compiled(rule, **values)

        return build


def register(app: QuartTrio, routes: Iterable[Route]) -> None:
    """Add the routes to the application."""
    app.url_rule_class = MatchingRule
    routes = tuple(routes)
    paths = {route.path for route in routes}
    for route in routes:
        app.add_url_rule(
            route.path,
            endpoint=f"{route.method} {route.path}",
            view_func=route.handler,
            methods=[route.method],
            provide_automatic_options=False,
            # Without its slash it is served all the same, unless that is the path of another route.
            strict_slashes=not route.path.endswith("/") or route.path[:-1] in paths,
        )
