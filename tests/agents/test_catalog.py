"""What is known of each agent, the strictness of the files, and telling agents apart."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import attrs
import pytest

from supervisor.agents import catalog
from supervisor.agents.catalog import (
    CATALOG_DIR,
    CatalogError,
    Kind,
    decode_descriptor,
    identify,
    load_catalog,
    presets,
)
from supervisor.agents.install.install import LOCKS_DIR, starts_pinned

CATALOG = load_catalog()

WITH_PIP = sorted(key for key, descriptor in CATALOG.items() if descriptor.pip)
WITH_NPM = sorted(key for key, descriptor in CATALOG.items() if descriptor.npm)


def test_keys_are_those_that_clients_know():
    known = {"claude-code", "codex", "gemini-cli", "kimi-code", "pi", "opencode", "custom", "demo"}
    known |= {
        "auggie",
        "cline",
        "copilot",
        "fast-agent",
        "mistral-vibe",
        "openhands",
        "openhands-cli",
        "qwen-code",
    }
    assert set(CATALOG) == known
    assert load_catalog() is CATALOG
    assert set(presets(CATALOG)) == known - {"custom", "openhands"}


@pytest.mark.parametrize(
    ("key", "package", "version", "key_env", "base_url_env", "data_dir_env"),
    [
        ("claude-code", "@agentclientprotocol/claude-agent-acp", "0.100.0", "ANTHROPIC_API_KEY",
         "ANTHROPIC_BASE_URL", {"CLAUDE_CONFIG_DIR", "CLAUDE_CODE_TMPDIR"}),
        ("codex", "@agentclientprotocol/codex-acp", "2.6.0", "OPENAI_API_KEY",
         "OPENAI_BASE_URL", {"CODEX_HOME"}),
        ("gemini-cli", "@google/gemini-cli", "0.61.0", "GEMINI_API_KEY",
         "GEMINI_BASE_URL", {"HOME"}),
        ("opencode", "opencode-ai", "1.18.33", "OPENCODE_API_KEY", None,
         {"XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"}),
        ("kimi-code", "@moonshot-ai/kimi-code", "0.38.0", "KIMI_API_KEY", "KIMI_BASE_URL",
         {"KIMI_CODE_HOME"}),
        ("pi", "pi-acp", "0.0.34", "ANTHROPIC_API_KEY", None, {"HOME"}),
        ("qwen-code", "@qwen-code/qwen-code", "0.24.4", "OPENAI_API_KEY", "OPENAI_BASE_URL", {"QWEN_HOME"}),
        ("copilot", "@github/copilot", "1.0.102", "COPILOT_PROVIDER_API_KEY", None, {"COPILOT_HOME"}),
        ("auggie", "@augmentcode/auggie", "0.36.0", "AUGMENT_API_TOKEN", None, {"HOME"}),
        ("cline", "cline", "3.0.65", "CLINE_API_KEY", None, {"HOME", "CLINE_DIR"}),
        ("mistral-vibe", "mistral-vibe", "3.0.2", "MISTRAL_API_KEY", None, {"VIBE_HOME"}),
        ("fast-agent", "fast-agent-mcp", "0.10.46", "GENERIC_API_KEY", None, {"FAST_AGENT_HOME"}),
        ("openhands-cli", "openhands", "1.16.0", None, None, {"OPENHANDS_PERSISTENCE_DIR"}),
        ("openhands", "openhands-sdk", "1.58.0", None, None, set()),
        ("demo", None, None, None, None, {"OSTLER_DEMO_HOME"}),
        ("custom", None, None, None, None, set()),
    ],
)  # fmt: skip
def test_facts(key, package, version, key_env, base_url_env, data_dir_env):
    descriptor = CATALOG[key]
    assert (descriptor.package and (descriptor.package.package, descriptor.package.version)) == (
        package and (package, version)
    )
    keys = [source.env for source in descriptor.credentials if source.kind is Kind.API_KEY]
    assert key_env is None or key_env in keys
    assert descriptor.base_url_env == base_url_env
    assert set(descriptor.data_dir_env) == data_dir_env


@pytest.mark.parametrize("key", WITH_NPM)
def test_lock_file_pins_what_the_descriptor_says(key):
    npm = CATALOG[key].npm
    text = (LOCKS_DIR / key / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    asked = json.loads((LOCKS_DIR / key / "package.json").read_text())
    names = {**asked.get("dependencies", {}), **asked.get("optionalDependencies", {})}
    assert all(version[0].isdigit() for version in names.values())
    assert npm.version in names.values()
    for name, entry in packages.items():
        if name:
            assert entry["integrity"].startswith("sha512-"), name
            assert "resolved" not in entry
    assert "registry" not in text
    programs = [npm.entry] if npm.entry else [path for paths in npm.native.values() for path in paths]
    assert any(name and program.startswith(f"{name}/") for name in packages for program in programs)


@pytest.mark.parametrize("key", WITH_PIP)
def test_lock_of_pypi_pins_every_package_by_hash(key):
    pip = CATALOG[key].pip
    assert str(pip.python).startswith(">=3.")
    texts = [path.read_text() for path in (LOCKS_DIR / key).glob("*.txt")]
    assert any(f"\n{pip.package}=={pip.version} " in text for text in texts)
    for text in texts:
        assert "://" not in text
        blocks = re.split(r"\n(?=\S)", text.strip())
        assert blocks[0].startswith("#")
        for block in blocks[1:]:
            assert re.match(r"[a-z0-9-]+==[^ ]+( ; [^\n]+)? \\\n    --hash=sha256:[0-9a-f]{64}\b", block), (
                block
            )


def test_locks_stay_small():
    """They are shipped with every Ostler."""
    assert sum(path.stat().st_size for path in LOCKS_DIR.glob("*/*")) < 500_000


@pytest.mark.parametrize("key", ["claude-code", "codex", "gemini-cli"])
def test_lock_file_covers_the_platforms(key):
    names = " ".join(json.loads((LOCKS_DIR / key / "package-lock.json").read_text())["packages"])
    for platform in ("linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64"):
        assert platform in names


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("@agentclientprotocol/claude-agent-acp", "claude-code"),
        ("@agentclientprotocol/codex-acp", "codex"),
        ("gemini-cli", "gemini-cli"),
        ("OpenCode", "opencode"),
        ("pi-acp", "pi"),
        ("ostler-demo", "demo"),
        ("Copilot", "copilot"),
        ("@mistralai/mistral-vibe", "mistral-vibe"),
        ("Kimi Code CLI", "kimi-code"),
        ("nobody", None),
    ],
)
def test_identify(name, key):
    assert identify(name, CATALOG) == key


@pytest.mark.parametrize(
    ("key", "command", "pinned"),
    [
        ("codex", [], True),
        ("codex", ["npx", "-y", "@agentclientprotocol/codex-acp@2.6.0"], True),
        ("codex", ["npx", "-y", "--prefer-offline", "@agentclientprotocol/codex-acp@2.6.0"], True),
        ("codex", ["npx", "-y", "@agentclientprotocol/codex-acp@1.1.7"], False),
        ("codex", ["npx", "-y", "@agentclientprotocol/codex-acp"], False),
        ("codex", ["npx", "-y", "@agentclientprotocol/codex-acp@2.6.0", "--flag"], False),
        ("codex", ["codex-acp"], False),
        ("custom", [], True),
        ("custom", ["anything"], False),
    ],
)
def test_only_the_pinned_command_is_replaced_by_the_install(key, command, pinned):
    assert starts_pinned(CATALOG[key], command) is pinned


MINIMAL = 'key = "x"\nname = "X"\ncommand = ["x"]\n'


def test_minimal_descriptor():
    assert decode_descriptor(MINIMAL, "x.toml").command == ("x",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key = ", "x.toml: "),
        ('key = "x"\nname = "X"', "command: Field required"),
        (MINIMAL + "colour = 1", "colour: Extra inputs are not permitted"),
        (MINIMAL + 'fs = "yes"', "fs: Input should be a valid boolean"),
        (MINIMAL + 'args = "--acp"', "args: Input should be a valid list"),
        (MINIMAL + "secret_env = [1]", r"secret_env\[0\]: Input should be a valid string"),
        (MINIMAL + "[env]\nA = 1", "env.A: Input should be a valid string"),
        (MINIMAL + 'npm = "x"', "npm: Input should be a valid dictionary"),
        (MINIMAL + '[npm]\npackage = "p"\nversion = "1"', "npm: exactly one of entry and native"),
        (
            MINIMAL + '[npm]\npackage = "p"\nversion = "1"\nentry = "e"\nsize_mb = true',
            "npm.size_mb: Input should be a valid integer",
        ),
        (
            MINIMAL + '[npm]\npackage = "p"\nversion = "1"\nentry = "e"\nmin_node = "new"',
            "npm.min_node: .*not a version like 22.19",
        ),
        (
            MINIMAL + '[[file_secrets]]\nname = "n"\npath = "../x"',
            r"file_secrets\[0\].path: .*not a path inside",
        ),
        (
            MINIMAL + '[[default_files]]\npath = "/etc/x"\ncontent = ""',
            r"default_files\[0\].path: .*not a path inside",
        ),
        (MINIMAL + '[data_dir_env]\nA = ".."', "data_dir_env.A: .*not a path inside"),
        (
            MINIMAL + '[[credentials]]\nkind = "login"\nenv = "A"\nurl = "b"',
            r"credentials\[0\].url: Extra inputs are not permitted",
        ),
        (
            MINIMAL + '[[credentials]]\nkind = "key"\nenv = "A"',
            r"credentials\[0\].kind: Input should be 'login', ",
        ),
        (
            MINIMAL + '[[credentials]]\nkind = "api_key"\nenv = "A"\napi = { url = "https://b" }',
            r"credentials\[0\].api: either env, or variable and property",
        ),
        (
            MINIMAL + '[[credentials]]\nkind = "api_key"\nenv = "A"\napi = { env = "B", variable = "C" }',
            r"credentials\[0\].api: either env, or variable and property",
        ),
        (
            MINIMAL + '[[credentials]]\nkind = "login"\nenv = "A"\nfiles = ["b"]',
            r"credentials\[0\]: exactly one of env, secret",
        ),
        (MINIMAL + '[[credentials]]\nkind = "login"', r"credentials\[0\]: exactly one of env, secret"),
        (
            MINIMAL + '[[credentials]]\nkind = "file"\nsecret = "A"',
            r"credentials\[0\].secret: A is not among the file secrets",
        ),
        (
            MINIMAL + 'module = "m"\n[npm]\npackage = "p"\nversion = "1"\nentry = "e"',
            "an agent has one of npm, pip and module",
        ),
    ],
)
def test_descriptor_is_read_strictly(text, message):
    with pytest.raises(CatalogError, match=message) as caught:
        decode_descriptor(text, "x.toml")
    assert str(caught.value).startswith("x.toml")


def test_every_mistake_in_a_descriptor_is_told():
    with pytest.raises(CatalogError) as caught:
        decode_descriptor(MINIMAL + 'fs = 1\ncolour = "x"\n[npm]\nversion = 2', "x.toml")
    assert str(caught.value) == (
        "x.toml: npm.package: Field required; npm.version: Input should be a valid string; "
        "fs: Input should be a valid boolean; colour: Extra inputs are not permitted"
    )


ROOT = Path(catalog.__file__).parents[2]


def test_every_property_of_a_descriptor_has_an_effect():
    """Each is read somewhere outside of the classes that describe them."""
    files = [path for room in ("supervisor", "gateway") for path in (ROOT / room).rglob("*.py")]
    read = {
        node.attr
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    described = {
        field.name
        for kind in vars(catalog).values()
        if isinstance(kind, type) and issubclass(kind, catalog.Described) and attrs.has(kind)
        for field in attrs.fields(kind)
    }
    assert {"sessions_by_minute", "unless_env", "size_mb"} < described
    assert described <= read


def test_every_bundled_file_is_loaded():
    assert {path.stem for path in CATALOG_DIR.glob("*.toml")} == set(CATALOG)


@pytest.mark.parametrize("key", sorted(CATALOG))
def test_a_credential_is_its_agents_own_so_that_others_do_not_get_it(key):
    descriptor = CATALOG[key]
    read = {source.env for source in descriptor.credentials if source.env is not None}
    assert read <= set(descriptor.secret_env)


@pytest.mark.parametrize("key", sorted(CATALOG))
def test_logins_come_before_the_keys_of_their_provider(key):
    seen = set()
    for source in CATALOG[key].credentials:
        if source.kind is Kind.API_KEY and source.when is None:
            seen.add(source.provider)
        assert source.kind is not Kind.LOGIN or source.provider not in seen, source
