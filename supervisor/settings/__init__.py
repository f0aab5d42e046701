"""The agent settings and their merge rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.settings.agent import (
        AgentSettings,
        BuiltInSettings,
        FileSecret,
        Presets,
        ServerCheck,
        agent_settings_from_dict,
        agent_settings_to_dict,
        decode_acp_agent,
        decode_agent_settings,
        with_own_fields,
    )
    from supervisor.settings.built_in import (
        DOCUMENT_BYTES,
        KIND,
        decode_agent,
        decode_built_in,
        decode_model,
        decrypted,
        document_secrets,
        hidden,
        hidden_within,
        is_built_in,
        open_document,
        seal_document,
        secrets_within,
        with_model,
        without_placeholders,
    )
    from supervisor.settings.connections import (
        ConnectionStore,
        ProviderConnectionCreateRequest,
        ProviderConnectionUpdateRequest,
    )
    from supervisor.settings.conversation import confirmation_policy, security_analyzer
    from supervisor.settings.document import (
        Rules,
        SettingsDocument,
        SettingsUpdateRequest,
        apply_change,
        first_document,
        public,
    )
    from supervisor.settings.errors import (
        EncryptionUnavailable,
        ProfileExists,
        ProfileReferenced,
        SettingsCorrupt,
        SettingsEmpty,
        SettingsError,
        SettingsFailure,
        TooManyProfiles,
        UnknownProfile,
    )
    from supervisor.settings.exposure import (
        EXPOSE_HEADER,
        REDACTED,
        Expose,
        StorageCipher,
        holds_token,
        replace_secrets,
        seal,
        secrets_of,
        unseal,
    )
    from supervisor.settings.llm import ProfileLLM, decode_llm, linked_settings
    from supervisor.settings.merge import MAX_DEPTH, too_deep
    from supervisor.settings.profiles.llm_profiles import LlmProfileStore, exposed
    from supervisor.settings.profiles.materialize import Channels
    from supervisor.settings.profiles.meta_profile import MetaProfile
    from supervisor.settings.profiles.meta_profiles import MetaProfileStore
    from supervisor.settings.profiles.openhands_profile import OpenHandsAgentProfile
    from supervisor.settings.profiles.profile import AgentProfile, decode_profile
    from supervisor.settings.profiles.profiles import AgentProfileStore
    from supervisor.settings.schema import agent_schema, conversation_schema
    from supervisor.settings.storage.store import SettingsStore
    from supervisor.settings.wire_aliases import spoken_settings
else:
    homes = {
        "agent": (
            "AgentSettings BuiltInSettings FileSecret Presets ServerCheck agent_settings_from_dict "
            "agent_settings_to_dict decode_acp_agent decode_agent_settings with_own_fields"
        ),
        "built_in": (
            "DOCUMENT_BYTES KIND decode_agent decode_built_in decode_model decrypted document_secrets "
            "hidden hidden_within is_built_in open_document seal_document secrets_within with_model "
            "without_placeholders"
        ),
        "connections": "ConnectionStore ProviderConnectionCreateRequest ProviderConnectionUpdateRequest",
        "conversation": "confirmation_policy security_analyzer",
        "document": "Rules SettingsDocument SettingsUpdateRequest apply_change first_document public",
        "errors": (
            "EncryptionUnavailable ProfileExists ProfileReferenced SettingsCorrupt "
            "SettingsEmpty SettingsError SettingsFailure TooManyProfiles UnknownProfile"
        ),
        "exposure": (
            "EXPOSE_HEADER REDACTED Expose StorageCipher holds_token replace_secrets seal secrets_of unseal"
        ),
        "llm": "ProfileLLM decode_llm linked_settings",
        "profiles.llm_profiles": "LlmProfileStore exposed",
        "profiles.materialize": "Channels",
        "merge": "MAX_DEPTH too_deep",
        "profiles.meta_profile": "MetaProfile",
        "profiles.meta_profiles": "MetaProfileStore",
        "profiles.openhands_profile": "OpenHandsAgentProfile",
        "profiles.profile": "AgentProfile decode_profile",
        "profiles.profiles": "AgentProfileStore",
        "schema": "agent_schema conversation_schema",
        "wire_aliases": "spoken_settings",
        "storage.store": "SettingsStore",
    }
    __getattr__ = names_of(__name__, homes)

__all__ = [
    "DOCUMENT_BYTES",
    "EXPOSE_HEADER",
    "KIND",
    "MAX_DEPTH",
    "REDACTED",
    "AgentProfile",
    "AgentProfileStore",
    "AgentSettings",
    "BuiltInSettings",
    "Channels",
    "ConnectionStore",
    "EncryptionUnavailable",
    "Expose",
    "FileSecret",
    "LlmProfileStore",
    "MetaProfile",
    "MetaProfileStore",
    "OpenHandsAgentProfile",
    "Presets",
    "ProfileExists",
    "ProfileLLM",
    "ProfileReferenced",
    "ProviderConnectionCreateRequest",
    "ProviderConnectionUpdateRequest",
    "Rules",
    "ServerCheck",
    "SettingsCorrupt",
    "SettingsDocument",
    "SettingsEmpty",
    "SettingsError",
    "SettingsFailure",
    "SettingsStore",
    "SettingsUpdateRequest",
    "StorageCipher",
    "TooManyProfiles",
    "UnknownProfile",
    "agent_schema",
    "agent_settings_from_dict",
    "agent_settings_to_dict",
    "apply_change",
    "confirmation_policy",
    "conversation_schema",
    "decode_acp_agent",
    "decode_agent",
    "decode_agent_settings",
    "decode_built_in",
    "decode_llm",
    "decode_model",
    "decode_profile",
    "decrypted",
    "document_secrets",
    "exposed",
    "first_document",
    "hidden",
    "hidden_within",
    "holds_token",
    "is_built_in",
    "linked_settings",
    "open_document",
    "public",
    "replace_secrets",
    "seal",
    "seal_document",
    "secrets_of",
    "secrets_within",
    "security_analyzer",
    "spoken_settings",
    "too_deep",
    "unseal",
    "with_model",
    "with_own_fields",
    "without_placeholders",
]
