"""Which cache format to choose: candidates enumerated, ranked by what is known, explained."""

from kvplan.recommend.advise import recommend
from kvplan.recommend.types import Recommendation, RecommendRequest

__all__ = ["RecommendRequest", "Recommendation", "recommend"]
