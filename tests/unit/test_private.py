"""Laws of what stays private: a secret gets neither into a campaign on record nor into what a failed run's logs tell."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from lab import ROOT

from attuner.config import load_campaign
from attuner.core.errors import UserError
from attuner.core.private import MASK, is_secret, mask, secret_in
from attuner.logs.lines import shown

HIDDEN = [
    "WANDB_API_KEY=0123456789abcdef python train.py",
    "  HF_TOKEN: zzz-very-private",
    "authorization: Bearer zzz-very-private",
    '{"password": "zzz-very-private"}',
    "fetching https://user:zzz-very-private@registry.example/x",
    "token hf_abcdefghijklmnopqrstuvwx was sent",
    "AKIAABCDEFGHIJKLMNOP",
    "AWS_SECRET_ACCESS_KEY=zzz-very-private",
    "aws_secret_access_key = zzz-very-private",
    "AZURE_STORAGE_KEY=zzz-very-private python x.py",
    "DefaultEndpointsProtocol=https;AccountKey=zzz-very-private;EndpointSuffix=core",
    "env: WANDB_KEY=zzz-very-private",
    "python train.py --wandb-key zzz-very-private --lr 1e-4",
    "hf download x --token zzz-very-private",
    "  wandb_key ................................... zzz-very-private",
    "x-api-key: zzz-very-private",
    "{'X-Api-Key': 'zzz-very-private'}",
    "Authorization: Basic zzz-very-private",
    "proxy-authorization: zzz-very-private0123",
    r"{\"clientSecret\": \"my zzz-very-private pass\"}",
    "DB_PASS='my zzz-very-private pass' python x.py",
    "https://zzz-very-private@github.com/x/y",
    "redis://:zzz-very-private@cache:6379/0",
    "GET http://s3/x?X-Amz-Algorithm=A&X-Amz-Signature=zzz-very-private&x=1",
    "https://a.blob.core.windows.net/c?sv=2020&sig=zzz-very-private",
    "post to https://hooks.slack.com/services/T000/B000/zzz-very-private failed",
    "SLACK_WEBHOOK_URL=https://hooks.slack.com/services/T0/B0/zzz-very-private",
    "https://x.webhook.office.com/webhookb2/a@b/IncomingWebhook/zzz-very-private",
    "https://discord.com/api/webhooks/1/zzz-very-private",
    "https://chat.example/hooks/0123456789abcdef0123456789",
    "-----BEGIN RSA PRIVATE KEY-----\\nzzz-very-private\\n-----END RSA PRIVATE KEY-----".replace("\\n", " "),
]
PLAIN = [
    "number of tokens: 512",
    "a token was not found: <eos>",
    "key=value pairs of the tokenizer",
    " iteration        5/    1000 | consumed samples:           40 | lm loss: 2.912345E+00 | grad norm: 1.234 |",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.66 GiB",
    "tokens=4096 max_tokens: 4096 MAX_TOKENS=4096 NUM_TOKEN=4096 tokens_per_s = 1,158.2 TOKENS_PER_S=3",
    "tokenizer_type: HuggingFaceTokenizer TOKENIZER_MODEL=/models/qwen/tokenizer.json",
    "  tokenizer_model ................................. /models/tokenizer.model",
    "eos_token: </s> pad_token=<pad> PAD_TOKEN=0 --mask-token <m> fim_pad_token = <f>",
    "--input-key prompt --label-key label INPUT_KEY=prompt metadata_key: meta",
    "monkey: 3 MONKEY=3 key=value keys: 4 keyboard=x secretary: Ada",
    "kv_channels: 128 num_query_groups=8 linear_key_head_dim ........ 128 query_key: 1 qk_layernorm=True",
    "NCCL_DEBUG=INFO NCCL_IB_HCA=mlx5_0 NCCL_ALGO=Ring NVTE_FLASH_ATTN=1 CUDA_DEVICE_MAX_CONNECTIONS=1",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:512",
    "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 commit 4412c96b0a5d3f1e2c7b8a9d0e1f2a3b4c5d6e7f",
    "/data/secrets/run-0001/tokens/part-00000.bin: no such file",
    "git@github.com:NVIDIA/Megatron-LM.git and ssh://git@github.com/x.git and postgresql://ada@db/ledger",
    "https://github.com/NVIDIA/Megatron-LM/blob/main/hooks/pre.py#L10 and http://127.0.0.1:8265/api/jobs/?x=a@b",
    "campaign.yaml: proposer.base_url: ANTHROPIC_API_KEY: is not set; HF_TOKEN: missing",
    "api_key was not found; the password is wrong; a secret",
    "signal: 9 signature mismatch: bf16 vs fp32; authorization: failed",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_a_secret_is_masked_where_text_is_shown_or_kept(text: str) -> None:
    for said in (mask(text), shown(text), mask(mask(text))):
        assert MASK in said
        assert "zzz-very-private" not in said
        assert "0123456789abcdef" not in said


@pytest.mark.parametrize("text", PLAIN)
def test_what_a_run_says_of_itself_stays(text: str) -> None:
    assert mask(text) == text


def test_masking_takes_no_longer_than_its_text() -> None:
    start = time.process_time()
    pieces = ("A_", "api_key", '"password" ', "a", "https://", "a-", "--a ", "https://a/", "PASSWORD='", "a ... ", "?key=")
    for piece in (*pieces, "authorization: ", "-----BEGIN PRIVATE KEY-----", "a.webhook"):
        mask(piece * 40_000)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("WANDB_API_KEY", "x"), ("HF_TOKEN", "x"), ("X", "hf_abcdefghijklmnopqrstuvwx"), ("WANDB_KEY", "x"), ("DB_PASS", "x")),
        *(
            ("SLACK_WEBHOOK_URL", "x"),
            ("WEBHOOK", "x"),
            ("HOOK", "https://hooks.slack.com/services/T0/B0/XX"),
            ("PGPASSWORD", "x"),
        ),
        *(
            ("AZURE_STORAGE_CONNECTION_STRING", "x"),
            ("S3_SECRET_KEY_B64", "x"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("https_proxy", "http://a:b@p"),
        ),
    ],
)
def test_names_and_values_of_secrets_are_known(name: str, value: str) -> None:
    assert is_secret(name, value)


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "TOKENIZERS_PARALLELISM",
        "NCCL_IB_HCA",
        "ATTUNER_WEBHOOK_FILE",
        "INPUT_KEY",
        "KEYS",
    ],
)
def test_settings_are_no_secrets(name: str) -> None:
    assert not is_secret(name, "1")


@pytest.mark.parametrize("place", ["baseline", "cluster"])
def test_a_campaign_file_with_a_secret_is_refused_before_it_is_on_record(tmp_path: Path, place: str) -> None:
    told = yaml.safe_load((ROOT / "configs" / "campaigns" / "quickstart.yaml").read_text())
    recipe = yaml.safe_load((ROOT / "configs" / told["baseline"]).read_text())
    cluster = yaml.safe_load((ROOT / "configs" / told["launcher"]["cluster"]).read_text())
    (recipe if place == "baseline" else cluster)["env"] = {"WANDB_API_KEY": "zzz-very-private"}
    told |= {"baseline": recipe, "launcher": {**told["launcher"], "cluster": cluster}}
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(told))
    with pytest.raises(UserError, match="WANDB_API_KEY: looks like a secret") as refused:
        load_campaign(file)
    assert "zzz-very-private" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["https://ada:zzz-very-private@h/", "https://zzz-very-private@h/", "https://h/?key=zzz-very-private"]
)
@pytest.mark.parametrize("door", ["file", "form"])
def test_an_address_with_a_password_is_refused_before_it_is_on_record(tmp_path: Path, address: str, door: str) -> None:
    told = yaml.safe_load((ROOT / "configs" / "campaigns" / "quickstart.yaml").read_text())
    told["proposer"] = {"name": "catalog", **({"base_url": address} if door == "file" else {})}
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(told))
    changes = {"proposer.base_url": address} if door == "form" else {}
    with pytest.raises(UserError, match=r"proposer\.base_url: looks like a secret") as refused:
        load_campaign(file, configs=ROOT / "configs", changes=changes)
    assert "zzz-very-private" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_a_form_replaced_goes_on_record_without_its_secret(tmp_path: Path) -> None:
    told = yaml.safe_load((ROOT / "configs" / "campaigns" / "quickstart.yaml").read_text())
    told["proposer"] = {"name": "catalog", "base_url": "https://ada:zzz-very-private@h/"}
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(told))
    made = load_campaign(file, configs=ROOT / "configs", changes={"proposer.base_url": "https://h/"})
    assert [str(x) for x in made.changed] == ["proposer.base_url https://(secret)@h/ → https://h/"]
    assert "zzz-very-private" not in made.model_dump_json()


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"env": {"SLACK_WEBHOOK_URL": "x"}}, ".env.SLACK_WEBHOOK_URL"),
        ({"arguments": {"wandb_key": "zzz"}}, ".arguments.wandb_key"),
        ({"stack": {"script_arguments": ["--hf-token", "zzz"]}}, ".stack.script_arguments"),
        ({"script": [{"set": {"a": "https://hooks.slack.com/services/T0/B0/zzz"}}]}, ".script.0.set.a"),
        ({"arguments": {"input_key": "prompt", "fim_pad_token": "<pad>", "metric_key": "loss"}}, ""),
        ({"changed": [{"key": "proposer.base_url", "before": "https://(secret)@h/", "after": ""}]}, ""),
        ({"image_pull_secrets": ["regcred"], "source_file": "/srv/key=x/c.yaml"}, ""),
    ],
)
def test_the_place_of_a_secret_in_a_record_is_named(data: dict[str, object], where: str) -> None:
    assert secret_in(data) == where
