"""Routes as values: what the application registers and what the interface description is built from."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import attrs
from quart import Response
from quart.routing import QuartRule
from quart_trio import QuartTrio

from gateway.api.requests.reading import Query
from supervisor.reading.model import Model
from supervisor.reading.schema import Components
from supervisor.reading.shapes import properties_of

Handler = Callable[..., Awaitable[Response]]
Schema = Mapping[str, Any]

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
    the description of the body, or its JSON schema where there is none; `result` is a JSON schema.

    `errors` are its other statuses, with the reason; their bodies are those of errors (below 300: its
    result), unless `error_results` has a schema, or None for no body.

    `path_schemas` are those of path parameters that are more than strings, and no UUIDs.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    query: tuple[Param, ...] = ()
    headers: tuple[Param, ...] = ()
    path_schemas: Mapping[str, Schema] = attrs.field(factory=dict)
    body: type[Model] | Schema | None = None
    body_required: bool = True
    body_media_type: str = "application/json"
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
