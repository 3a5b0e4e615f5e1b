"""What to choose for a cache: every choice computed, ranked by what is known, explained."""

from kvplan.recommend.advise import recommend
from kvplan.recommend.types import Recommendation, RecommendRequest

__all__ = ["RecommendRequest", "Recommendation", "recommend"]
