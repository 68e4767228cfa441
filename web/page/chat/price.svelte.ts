// What an hour of the machine costs, as the person says. Kept in this browser; 0 where nobody has said.
import { recall, remember } from "../recall";

class Price {
  perHour = $state(Number(recall("price")) || 0);

  /** Take a price in any currency; what is no positive number is none. */
  set(text: string): void {
    const value = Number(text);
    this.perHour = Number.isFinite(value) && value > 0 ? value : 0;
    remember("price", String(this.perHour));
  }
}

export const price = new Price();
