"""Topics named as Pulsar names them (CMP-10)."""

from __future__ import annotations

import pytest

from message_lifecycle.model.errors import BadInput, InvalidName, InvalidTopicUri
from message_lifecycle.model.names import TopicUri


@pytest.mark.parametrize(
    ("text", "name", "partition"),
    [
        ("persistent://shop/eu/orders", "shop.eu/orders", None),
        ("persistent://shop/eu/orders-partition-0", "shop.eu/orders", 0),
        ("persistent://shop/eu/orders-partition-17", "shop.eu/orders", 17),
        ("persistent://shop/eu/orders-partition-2-partition-1", "shop.eu/orders-partition-2", 1),
        ("persistent://shop/eu/orders-partition-01", "shop.eu/orders-partition-01", None),
        ("persistent://shop/eu/orders-partition-", "shop.eu/orders-partition-", None),
        ("persistent://shop/eu.west/orders", "shop.eu.west/orders", None),
        ("persistent://Shop/EU/My Orders", "shop.eu/my.orders", None),
        ("  persistent://shop/eu/orders ", "shop.eu/orders", None),
        ("shop/orders", "shop/orders", None),
        ("orders", "default/orders", None),
        ("shop/orders-partition-3", "shop/orders-partition-3", None),
    ],
)
def test_what_a_name_means(text: str, name: str, partition: int | None) -> None:
    found = TopicUri.parse(text)
    assert (str(found.name), found.partition) == (name, partition)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("non-persistent://shop/eu/orders", "scheme is 'non-persistent'"),
        ("Persistent://shop/eu/orders", "scheme is 'Persistent'"),
        ("://shop/eu/orders", "scheme is ''"),
        ("persistent://orders", "1 part(s)"),
        ("persistent://shop/orders", "2 part(s)"),
        ("persistent://shop/cluster/eu/orders", "4 part(s)"),
        ("persistent://shop.de/eu/orders", "with a dot"),
        ("persistent://my shop/eu/orders", "with a dot"),
    ],
)
def test_what_is_no_topic_says_what_is_one(text: str, why: str) -> None:
    with pytest.raises(InvalidTopicUri) as refused:
        TopicUri.parse(text)
    assert why in str(refused.value)
    assert "persistent://TENANT/NAMESPACE/TOPIC" in str(refused.value)
    assert isinstance(refused.value, BadInput)


@pytest.mark.parametrize(
    "text", ["persistent:///eu/orders", "persistent://shop//orders", "persistent://shop/eu/", "persistent://shop/eu/-partition-1", "a/b/c"]
)
def test_a_part_that_is_no_name_is_refused_as_one(text: str) -> None:
    with pytest.raises(InvalidName):
        TopicUri.parse(text)


def test_two_uris_that_differ_name_two_topics() -> None:
    """The place of the dot says where the tenant ends, so `a` and `b.c` are not `a.b` and `c`."""
    assert TopicUri.parse("persistent://a/b.c/t").name.stream == "a.b.c"
    with pytest.raises(InvalidTopicUri):
        TopicUri.parse("persistent://a.b/c/t")
