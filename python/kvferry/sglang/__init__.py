"""kvferry as a transfer backend of SGLang's prefill/decode disaggregation.

SGLang finds it by itself: the distribution declares an entry point in the group
`sglang.srt.plugins`, and `--disaggregation-transfer-backend kvferry` chooses it. Nothing here is
imported before SGLang loads its plug-ins. docs/sglang_plugin.md has the flags, the settings and the
limits.
"""
