"""What a Poisson draw costs an owner of several of its records."""

from dataclasses import dataclass

from dp_accounting import DpEvent

__all__ = ["OwnerDpEvent"]


@dataclass(frozen=True)
class OwnerDpEvent(DpEvent):
    """A Gaussian mechanism on a Poisson draw, for an owner of at most so many of the records.

    Attributes:
        sampling_probability: with which each record is drawn, whatever the others do; in (0, 1).
        records: of one owner, at most; 2 or more (of 1 it is a plain Poisson draw, and computed alike).
        noise_multiplier: noise standard deviation over the bound on ONE record's contribution to the sum; above 0.

    Formal guarantee: the neighbouring data set holds, in place of all records of one owner, records that contribute
    nothing. The two distributions of the step are dominated, in each order, by N(J / z, 1) and N(0, 1), where J is
    Binomial(records, sampling_probability): as many of the owner's records as are drawn, all of which pull one way.
    That is attained by records whose contributions are equal and as large as the bound.

    Proof. Given what was released before and which records of others are drawn, the owner's drawn records T (a random
    set) add sum_{i in T} c_i to the sum, |c_i| at most the bound, so in units of the noise the step is N(v_T, I)
    against N(0, I), |v_T| <= |T| / z. With L(x) = E_T exp(<v_T, x> - |v_T|^2 / 2), the likelihood ratio at x ~ N(0, I),
    the hockey-stick divergences of the two orders are E (L - e^epsilon)_+ and E (1 - e^epsilon L)_+: means of convex
    functions of L. The exponents <v_T, x> are jointly Gaussian with covariances <v_T, v_T'> <= (|T| / z) (|T'| / z),
    those of the dominating pair, and L is a mean of such lognormals of mean 1. By Kahane's inequality such a mean of a
    convex function grows with every covariance. (Along Z(t) = sqrt(t) Y + sqrt(1 - t) X it has the derivative
    1/2 sum_{T,T'} p_T p_T' (cov Y - cov X)_{T,T'} E[W_T W_T' f''(L)] >= 0, W_T the lognormals.) It covers fewer
    records, too: v_T leaves out those that are not there. Joint convexity takes the mean over the draws of others,
    which are independent of T.
    Source: Choquette-Choo, Ganesh, Steinke, Thakurta 2024, arXiv:2310.15526, Corollary 4.7 (the same pair); Kahane
    1985, "Sur le chaos multiplicatif"; for records of several owners Ganesh, McKenna, McMahan, Smith, Wu 2025,
    arXiv:2503.03622, section 3.2.
    """

    sampling_probability: float
    records: int
    noise_multiplier: float
