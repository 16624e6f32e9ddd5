"""Pictures that are made of others."""

from strategies.views import with_sibling
from tests.support.made_views import instance


def test_an_instance_with_a_sibling_is_else_the_same():
    view = instance(3, running=2)._replace(urgent=1, waiting=4)
    assert with_sibling(view) == view._replace(has_sibling=True) != view
