"""Laws of what stays private: a secret gets neither into a campaign on record nor into what a failed run's logs tell."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from lab import ROOT

from attuner.config import load_campaign
from attuner.core.errors import UserError
from attuner.core.private import MASK, is_secret, mask
from attuner.logs.lines import shown

HIDDEN = [
    "WANDB_API_KEY=0123456789abcdef python train.py",
    "  HF_TOKEN: zzz-very-private",
    "authorization: Bearer zzz-very-private",
    '{"password": "zzz-very-private"}',
    "fetching https://user:zzz-very-private@registry.example/x",
    "token hf_abcdefghijklmnopqrstuvwx was sent",
    "AKIAABCDEFGHIJKLMNOP",
]
PLAIN = [
    "number of tokens: 512",
    "a token was not found: <eos>",
    "key=value pairs of the tokenizer",
    " iteration        5/    1000 | consumed samples:           40 | lm loss: 2.912345E+00 | grad norm: 1.234 |",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.66 GiB",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_a_secret_is_masked_where_text_is_shown_or_kept(text: str) -> None:
    for said in (mask(text), shown(text)):
        assert MASK in said
        assert "zzz-very-private" not in said
        assert "0123456789abcdef" not in said


@pytest.mark.parametrize("text", PLAIN)
def test_what_a_run_says_of_itself_stays(text: str) -> None:
    assert mask(text) == text


def test_masking_takes_no_longer_than_its_text() -> None:
    start = time.process_time()
    for piece in ("A_", "api_key", '"password" ', "a", "https://"):
        mask(piece * 40_000)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(("name", "value"), [("WANDB_API_KEY", "x"), ("HF_TOKEN", "x"), ("X", "hf_abcdefghijklmnopqrstuvwx")])
def test_names_and_values_of_secrets_are_known(name: str, value: str) -> None:
    assert is_secret(name, value)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "CUDA_DEVICE_MAX_CONNECTIONS", "TOKENIZERS_PARALLELISM", "NCCL_IB_HCA"])
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
